# SPDX-License-Identifier: Apache-2.0
"""Starting the processes of a run with torchrun, and reading what came of them.

Invariant: whatever ends this process ends those too: they hold the other end of their standard
input, and leave when it closes. Pure Python; torch is asked for the number of GPUs alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from penstock import errors
from penstock.errors import EnvironmentProblem, FailedError, PenstockError
from penstock.files import write_whole

from .parent import ended
from .request import Request
from .worker import MARK, REQUEST, RESULT

# Lines of what processes print that are kept for an error.
KEPT = 60


def launch(request: Request, *, stream: TextIO, verbose: bool) -> dict[str, Any]:
    """Run a request in `gpus` processes.

    Args:
        request: A checked request of an engine that needs a process group.
        stream: Where progress goes.
        verbose: Whether everything that processes print goes there too.

    Returns:
        The result of the first process.

    Raises:
        PenstockError: The one that a process raised, or that one died.
    """
    _check_places(request)
    with tempfile.TemporaryDirectory(prefix="penstock-finetune-") as name:
        folder = Path(name)
        write_whole("the request", str(folder / REQUEST), json.dumps(asdict(request)))
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(request.gpus), "-m", "penstock.finetune.worker", name),
        ]
        # Without a number of threads torchrun says at length that it sets one.
        kept = follow(command, {"OMP_NUM_THREADS": "1", **os.environ}, stream, verbose)
        if (folder / RESULT).exists():
            result: dict[str, Any] = json.loads((folder / RESULT).read_text())
            return result
        raise failure_of(folder, kept)


def _check_places(request: Request) -> None:
    """Before as many processes are there as the machine cannot hold.

    Raises:
        EnvironmentProblem: If there are more than GPUs, or, without any, than processors.
    """
    found = 0
    if request.settings.device != "emulated":
        import torch

        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    most = found or max(2, len(os.sched_getaffinity(0)))
    if request.gpus > most:
        there = f"torch sees {found}"
        if found == 0:
            there = f"without a GPU at most {most} processes run here, by its processors"
        raise EnvironmentProblem(
            f"--gpus {request.gpus}, but {there}", remedy=f"--gpus {most} or less"
        )


def follow(
    command: list[str], environment: dict[str, str], stream: TextIO, verbose: bool
) -> list[str]:
    """Run to the end; the last lines that were not progress."""
    kept: deque[str] = deque(maxlen=KEPT)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    )
    assert process.stdout is not None
    with ended(process):  # torchrun, told to end, ends its processes
        for line in process.stdout:
            if line.startswith(MARK):
                stream.write(line.removeprefix(MARK))
                stream.flush()
                continue
            kept.append(line.rstrip())
            if verbose:
                stream.write(line)
        process.wait()
    return list(kept)


def failure_of(folder: Path, kept: list[str]) -> PenstockError:
    """The first error that a process wrote down; where none could, what it printed last."""
    for path in sorted(folder.glob("error-*.json")):
        document = json.loads(path.read_text())
        kind: type[PenstockError] = getattr(errors, document["kind"], FailedError)
        return kind(document["what"], remedy=document["remedy"])
    # What torchrun says itself, which is that a process failed, comes last.
    said = [line for line in kept if "Error" in line and "ChildFailedError" not in line]
    cause = re.sub(r"^\[rank\d+\]:\s*", "", said[-1]).strip() if said else ""
    if "ModuleNotFoundError: No module named 'torch" in cause:
        return EnvironmentProblem("torch is not installed", remedy="pip install 'penstock[torch]'")
    return FailedError(
        f"a process of the run died{f': {cause}' if cause else ''}",
        remedy="the same with -v, which prints what the processes print",
    )
