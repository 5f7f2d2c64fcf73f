# SPDX-License-Identifier: Apache-2.0
"""The same fine-tune under several settings, each in a process of its own.

An allocator is chosen once a process, and a step's time should know nothing of the run before; so
every setting starts afresh, one after the other. A setting that runs out of memory is a result,
too. Whatever ends this process ends theirs, and leaves no file: results come through pipes. Pure
Python: the processes import what they need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from penstock.results import with_head

from .parent import ended


@dataclass(frozen=True)
class Setting:
    """What one run of the work has of its own.

    Attributes:
        allocator: Its allocator, or None for the work's own.
        budget: Its --gpu-memory, or None for the work's own.
    """

    allocator: str | None
    budget: str | None

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return ", ".join(part for part in (self.allocator, self.budget) if part)

    @property
    def flags(self) -> list[str]:
        """Flags of `penstock finetune`."""
        flags = ["--allocator", self.allocator] if self.allocator else []
        return flags + (["--gpu-memory", self.budget] if self.budget else [])


@dataclass(frozen=True)
class Row(Setting):
    """A setting, and what came of it.

    Attributes:
        exit_code: Of the process.
        error: Its error in one line; None where it succeeded.
        seconds: From start to end, imports included.
        result: Its JSON; None where it failed.
    """

    exit_code: int
    error: str | None
    seconds: float
    result: dict[str, Any] | None


def settings_of(allocators: Sequence[str], budgets: Sequence[str]) -> list[Setting]:
    """Every allocator with every budget, in their order."""
    return [
        Setting(allocator, budget) for budget in (budgets or (None,)) for allocator in allocators
    ] or [Setting(None, budget) for budget in budgets]


def run_all(
    work: Sequence[str], settings: Sequence[Setting], *, stream: TextIO | None
) -> list[Row]:
    """Run the work under each setting.

    Args:
        work: Flags of `penstock finetune`.
        settings: In which order.
        stream: Where the progress of the processes goes, line by line; None shows none.
    """
    return [_run(work, setting, stream) for setting in settings]


def _run(work: Sequence[str], setting: Setting, stream: TextIO | None) -> Row:
    command = [sys.executable, "-m", "penstock.cli.child", "finetune", *work, *setting.flags]
    begin = time.monotonic()
    ours, theirs = os.pipe()
    with open(ours, "rb") as result_pipe:
        try:
            process = subprocess.Popen(
                [*command, "--json", f"/dev/fd/{theirs}"],
                stdin=subprocess.PIPE,  # it ends when this closes
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs,),
                text=True,
                errors="replace",
            )
        finally:
            os.close(theirs)
        with ThreadPoolExecutor(1) as threads, ended(process):
            written = threads.submit(result_pipe.read)
            error = _follow(process, setting, stream)
            code = process.wait()
            content = written.result()
    result = json.loads(content) if code == 0 else None
    if code and error is None:
        error = f"the process ended with {code}"
    seconds = round(time.monotonic() - begin, 2)
    error = None if code == 0 else error
    return Row(setting.allocator, setting.budget, code, error, seconds, result)


def _follow(process: subprocess.Popen[str], setting: Setting, stream: TextIO | None) -> str | None:
    """Show what a process says; the error among it."""
    error = None
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("error: "):
            error = line.removeprefix("error: ").strip()
        if stream is not None:
            stream.write(f"{setting.name}: {line}")
            stream.flush()
    return error


def loss_difference(row: Row, first: Row) -> float | None:
    """The largest difference of two loss curves.

    None where one is not there, or shorter, or has a loss that was not finite (null in its JSON).
    """
    if row.result is None or first.result is None:
        return None
    mine: list[float] = row.result["loss"]
    theirs: list[float] = first.result["loss"]
    if len(mine) != len(theirs) or None in mine or None in theirs:
        return None
    return max((abs(one - other) for one, other in zip(mine, theirs, strict=True)), default=0.0)


def document(work: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    """The comparison as JSON gives it; the result of each row is that of `penstock finetune`."""
    done = [row for row in rows if row.result is not None]
    listed = [
        {"name": row.name, **asdict(row)}
        | {"loss_difference": loss_difference(row, done[0]) if done else None}
        for row in rows
    ]
    return with_head("compare", {"work": ["finetune", *work], "rows": listed})
