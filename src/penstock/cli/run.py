# SPDX-License-Identifier: Apache-2.0
"""``penstock run``: start a program with the proxy before the driver, and become it.

Nothing of Penstock waits for the program: its exit code, its signals and its output are its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
from pathlib import Path
from typing import NoReturn

import click

from penstock.config import Settings
from penstock.errors import EnvironmentProblem, FailedError, UsageError
from penstock.files import beginning

from .common import check_own, force_option, verb

# What Python changes for itself, and a program would inherit.
_PYTHONS_OWN = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")
# What a recording begins with: penstock.trace.work.MAGIC, which needs numpy.
RECORDING = b"PNSTWORK"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--print-preload", is_flag=True, help="Print what LD_PRELOAD needs, and end.")
@click.option("--summary", is_flag=True, help="Say at the end what was seen, on stderr.")
@force_option
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@verb("device", "gpu_memory", "safety", "record", "log_level", json_output=False)
def command(
    settings: Settings,
    program: tuple[str, ...],
    print_preload: bool,
    summary: bool,
    force: bool,
) -> None:
    """Run any CUDA program within a budget, unchanged.

    Everything after -- is the program. Its exit code, signals and output are its own.
    docs/run.md says what is seen of a program, and what cannot be.

    \b
    Examples:
      penstock run --gpu-memory 8GiB -- python train.py
      penstock run --record run.trace -- python train.py
      LD_PRELOAD=$(penstock run --print-preload) ./program
    """  # noqa: D301
    _check(settings, program, print_preload)
    if settings.record:
        check_own("--record", settings.record, _is_recording, "recording", force=force)
    from penstock import preload

    prepared = preload.prepare()
    if prepared is None and (settings.device == "cuda" or print_preload):
        raise EnvironmentProblem("there is no NVIDIA driver here", remedy="penstock doctor")
    if print_preload and prepared is not None:
        click.echo(str(prepared.proxy))
        return
    environment = dict(os.environ)
    if prepared is None:
        alone = ", and nothing is recorded" if settings.record else ""
        click.echo(
            f"warning: there is no NVIDIA driver here; the program runs as it is{alone}", err=True
        )
    else:
        wanted = _variables(settings, summary=summary or settings.summary)
        environment = preload.program_environment(prepared, os.environ, wanted)
        _give_way(settings.record)
    _become(program, environment)


def _check(settings: Settings, program: tuple[str, ...], print_preload: bool) -> None:
    if not program and not print_preload:
        raise UsageError("which program?", remedy="penstock run -- python script.py")
    kind, _, ordinal = settings.device.partition(":")
    if ordinal:
        raise UsageError(
            f"--device {settings.device}: a program chooses its GPUs itself",
            remedy=f"CUDA_VISIBLE_DEVICES={ordinal} penstock run ...",
        )
    if kind == "emulated":
        raise UsageError(
            "--device emulated: programs know nothing of it",
            remedy="penstock gpt --device emulated",
        )


def _is_recording(path: Path) -> bool:
    return beginning(path, len(RECORDING)) == RECORDING


def _give_way(record: str) -> None:
    """Remove an older recording from where this one goes: the engine writes over nothing.

    A link stays; a pipe or a device is written to.

    Raises:
        FailedError: If it cannot be removed.
    """
    if not record:
        return
    try:
        if stat.S_ISREG(os.stat(record).st_mode):
            os.unlink(os.path.realpath(record))
    except FileNotFoundError:
        return
    except OSError as error:
        raise FailedError(f"--record: {record} cannot be removed: {error.strerror}") from error


def _recording_place(record: str) -> str:
    """Where a recording goes, for the engine, which follows no link to a file."""
    if not record or (os.path.exists(record) and not os.path.isfile(record)):
        return os.path.abspath(record) if record else ""
    return os.path.realpath(record)


def _variables(settings: Settings, *, summary: bool) -> dict[str, str]:
    """What the engine in the program reads; what is as by default is left out."""
    budget = settings.gpu_memory
    level = settings.log_level
    if settings.verbose and level in ("error", "warning"):
        level = "info"
    return {
        "PENSTOCK_GPU_MEMORY": "" if budget == "auto" else budget,
        "PENSTOCK_SAFETY": "" if settings.safety == "normal" else settings.safety,
        "PENSTOCK_LOG_LEVEL": "" if level == "warning" else level,
        # The program may change its folder before the engine is there.
        "PENSTOCK_RECORD": _recording_place(settings.record),
        "PENSTOCK_SUMMARY": "1" if summary else "",
    }


def _become(program: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    """Replace this process."""
    file = shutil.which(program[0])
    if file is None and os.path.exists(program[0]):
        raise FailedError(
            f"{program[0]} is there, but cannot be run", remedy="a program, or chmod +x"
        )
    if file is None:
        remedy = f"python {program[0]}" if program[0].endswith(".py") else "its path"
        raise FailedError(f"there is no program '{program[0]}'", remedy=remedy)
    for name in _PYTHONS_OWN:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(file, list(program), environment)
    except OSError as error:
        raise FailedError(f"{program[0]} cannot be run: {error.strerror}") from error
