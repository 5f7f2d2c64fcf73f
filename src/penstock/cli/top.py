# SPDX-License-Identifier: Apache-2.0
"""``penstock top``: what is on each GPU now, process by process.

The driver's own tool says who has how much; /proc says which of them run under Penstock, and
within which budget if `penstock run` or a variable gave it. Reads, and changes nothing.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import click

from penstock.errors import EnvironmentProblem, FailedError
from penstock.results import with_head
from penstock.text import one_line
from penstock.units import MIB, format_bytes

from .common import Output, between, verb

GPUS = "--query-gpu=uuid,index,name,memory.total,memory.used,utilization.gpu"
PROCESSES = "--query-compute-apps=gpu_uuid,pid,used_memory"
LIBRARIES = ("libpenstock.so", "penstock/preload/libcuda.so.1")
BUDGET = "PENSTOCK_GPU_MEMORY="
CLEAR = "\x1b[H\x1b[2J"
PERIODS = (0.01, 1e6)  # seconds


@dataclass(frozen=True)
class Process:
    """One program on a GPU; `device_bytes` None where the driver does not tell."""

    pid: int
    command: str
    device_bytes: int | None
    penstock: bool | None  # None where the process is another user's
    budget: str | None


@dataclass
class Gpu:
    """One card; `busy` is the share of time in which a kernel ran, in per cent."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    busy: int | None
    processes: list[Process] = field(default_factory=list)


def _ask(query: str) -> Iterator[list[str]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise EnvironmentProblem(
            "no nvidia-smi, so nothing tells what is on a GPU",
            remedy="penstock doctor says what this machine lacks",
        )
    command = [tool, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stdout", None) or str(error)
        raise FailedError(
            f"nvidia-smi failed: {one_line(said)}", remedy="penstock doctor"
        ) from None
    return ([cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines()) if row)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None  # "[N/A]" and the like


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None


def _process(pid: int, mib: int | None, proc: Path) -> Process:
    folder = proc / str(pid)
    command = (_text(folder / "cmdline") or "").replace("\0", " ").strip()
    maps, environment = _text(folder / "maps"), _text(folder / "environ") or ""
    given = (line for line in environment.split("\0") if line.startswith(BUDGET))
    return Process(
        pid=pid,
        command=one_line(command) or "?",
        device_bytes=None if mib is None else mib * MIB,
        penstock=None if maps is None else any(name in maps for name in LIBRARIES),
        budget=next(given, "").removeprefix(BUDGET) or None,
    )


def look(proc: Path = Path("/proc")) -> list[Gpu]:
    """Every GPU with its processes, those with the most memory first.

    Raises:
        EnvironmentProblem: If there is no driver to ask.
        FailedError: If it does not answer, or not in the form that was asked for.
    """
    try:
        return _look(proc)
    except (ValueError, csv.Error) as error:
        raise FailedError(
            f"nvidia-smi answered in another form: {error}", remedy="penstock doctor"
        ) from None


def _look(proc: Path) -> list[Gpu]:
    found: dict[str, Gpu] = {}
    for uuid, index, name, total, used, busy in _ask(GPUS):
        all_bytes, used_bytes = ((_number(size) or 0) * MIB for size in (total, used))
        found[uuid] = Gpu(int(index), one_line(name), all_bytes, used_bytes, _number(busy))
    for uuid, pid, used in _ask(PROCESSES):
        if uuid in found:
            found[uuid].processes.append(_process(int(pid), _number(used), proc))
    for gpu in found.values():
        gpu.processes.sort(key=lambda each: -(each.device_bytes or 0))
    return list(found.values())


def lines(gpus: list[Gpu], width: int) -> Iterator[str]:
    """What a terminal shows."""
    for gpu in gpus:
        free = format_bytes(gpu.total_bytes - gpu.used_bytes)
        busy = "" if gpu.busy is None else f", {gpu.busy} % busy"
        used, total = format_bytes(gpu.used_bytes), format_bytes(gpu.total_bytes)
        yield f"GPU {gpu.index}  {gpu.name}: {used} of {total}, {free} free{busy}"
        yield f"  {'pid':>8}  {'memory':>10}  {'budget':>8}  {'penstock':8}  command"
        for each in gpu.processes:
            size = "?" if each.device_bytes is None else format_bytes(each.device_bytes)
            ours = {True: "yes", False: "no", None: "?"}[each.penstock]
            row = f"  {each.pid:>8}  {size:>10}  {each.budget or '-':>8}  {ours:8}  {each.command}"
            yield row[:width]
        if not gpu.processes:
            yield "  no program"


@click.command(short_help="Show what is on each GPU now, process by process.")
@click.option(
    "--every",
    type=float,
    metavar="SECONDS",
    callback=between(*PERIODS),
    help="Repeat until Ctrl-C.",
)
@verb()
def command(every: float | None, output: Output, settings: Any) -> None:
    """Show what is on each GPU now: memory in use and free, and each program with its memory.

    A program counts as Penstock's if it has our library. Its budget is shown if `penstock run` or
    PENSTOCK_GPU_MEMORY gave it.

    \b
    Examples:
      penstock top
      penstock top --every 2
    """  # noqa: D301
    del settings
    terminal = sys.stdout.isatty()
    while True:
        gpus = look()
        width = shutil.get_terminal_size().columns if terminal else 1000
        text = "\n".join(lines(gpus, width))
        document = with_head("top", {"gpus": [asdict(gpu) for gpu in gpus]})
        if every is not None and terminal:
            text = CLEAR + text
        output.emit(document, partial(click.echo, text))
        if every is None:
            return
        sleep(every)
