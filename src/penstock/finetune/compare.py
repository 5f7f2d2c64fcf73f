# SPDX-License-Identifier: Apache-2.0
"""The same fine-tune under several settings, each in a process of its own.

An allocator is chosen once a process, and a step's time should know nothing of the run before; so
every setting starts afresh, one after the other. A setting that runs out of memory is a result,
too. Pure Python: the processes import what they need.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

SCHEMA_VERSION = 1


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
class Row:
    """What came of one setting.

    Attributes:
        name: Of the setting.
        allocator: As set, or None.
        budget: As set, or None.
        exit_code: Of the process.
        error: Its error in one line; None where it succeeded.
        seconds: From start to end, imports included.
        result: Its JSON; None where it failed.
    """

    name: str
    allocator: str | None
    budget: str | None
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
    work: Sequence[str],
    settings: Sequence[Setting],
    *,
    stream: TextIO | None,
    after: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Run the work under each setting.

    Args:
        work: Flags of `penstock finetune`.
        settings: In which order.
        stream: Where the progress of the processes goes, line by line; None shows none.
        after: Told of each that is done.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="penstock-compare-") as folder:
        for number, setting in enumerate(settings):
            target = Path(folder) / f"{number}.json"
            rows.append(_run(work, setting, target, stream))
            after(rows[-1])
    return rows


def _run(work: Sequence[str], setting: Setting, target: Path, stream: TextIO | None) -> Row:
    command = [sys.executable, "-m", "penstock", "finetune", *work, *setting.flags]
    begin = time.monotonic()
    process = subprocess.Popen(
        [*command, "--json", str(target)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert process.stderr is not None
    error = None
    try:
        for line in process.stderr:
            if line.startswith("error: "):
                error = line.removeprefix("error: ").strip()
            if stream is not None:
                stream.write(f"{setting.name}: {line}")
                stream.flush()
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    result = json.loads(target.read_text()) if code == 0 else None
    if code and error is None:
        error = f"the process ended with {code}"
    seconds = round(time.monotonic() - begin, 2)
    where = (setting.name, setting.allocator, setting.budget)
    return Row(*where, code, None if code == 0 else error, seconds, result)


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
    listed = []
    for row in rows:
        entry = asdict(row)
        entry["loss_difference"] = loss_difference(row, done[0]) if done else None
        listed.append(entry)
    return {"schema_version": SCHEMA_VERSION, "work": ["finetune", *work], "rows": listed}
