# SPDX-License-Identifier: Apache-2.0
"""A result file that grows row by row, so that what was measured stays when time runs out."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.measure import command_line, provenance, write_result
from penstock.units import format_bytes

# Of a row that is told in a line: what is left out, and the words that have their key before them.
QUIET = ("samples", "explain", "command", "settings", "stats", "counters", "p10_ms", "p90_ms")
NAMED = ("error", "skipped", "complaint", "note")


class OutOfTime(Exception):
    """The time that the command line gave is over."""


class Record:
    """One run of a suite: its rows, its file, its clock.

    Attributes:
        document: What the file holds.
        rows: Those so far, in the document.

    Args:
        output: The file, written after every row; None: there is none.
        limit: Seconds for everything.
        key: What the document calls its rows.
        card: Whether a card takes part.
        head: What else it says.
    """

    def __init__(
        self,
        output: Path | None,
        limit: float = math.inf,
        *,
        key: str = "rows",
        card: bool = True,
        **head: Any,
    ) -> None:
        self.output, self.limit, self.begin = output, limit, time.monotonic()
        self.rows: list[dict[str, Any]] = []
        where = {"command": command_line(), "where": provenance(card=card)}
        self.document: dict[str, Any] = {**head, **where, key: self.rows}

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return self.limit - self.taken

    @property
    def taken(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.begin

    def check_time(self) -> None:
        """Raise OutOfTime where none is left."""
        if self.left < 0:
            raise OutOfTime(f"the limit of {self.limit:.0f} s is reached")

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, and say in a line what it found."""
        self.rows.append(row)
        print(brief(row), f"[{self.taken:.0f} s]", flush=True)
        self.write()

    def write(self) -> None:
        """Write what there is."""
        self.document["total_seconds"] = round(self.taken, 1)
        if self.output is not None:
            write_result(self.output, self.document)

    @contextlib.contextmanager
    def trying(self, label: dict[str, Any]) -> Iterator[None]:
        """What fails in here is written down, and others go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            failed = self.document.setdefault("failed", [])
            failed.append({**label, "error": f"{type(error).__name__}: {error}"})


def brief(row: dict[str, Any]) -> str:
    """A row in a line: its words, and its figures in the units that their keys end with."""
    parts = []
    for key, value in row.items():
        if key.endswith(QUIET):
            continue
        if isinstance(value, str):
            line = value.strip().split("\n")[-1][:300]
            parts.append(f"{key}: {line}" if key in NAMED else line)
        elif isinstance(value, bool):
            parts.append(f"{key} {'yes' if value else 'no'}")
        elif isinstance(value, int | float):
            name, _, unit = key.rpartition("_")
            told = {"bytes": format_bytes(int(value)), "ms": f"{value:,.1f} ms"}.get(unit)
            parts.append(f"{name} {told}" if told and name else f"{key} {value:.6g}")
        elif isinstance(value, dict):
            parts.append(f"{key} ({brief(value)})")
        elif key == "said":
            parts += value
    return ", ".join(filter(None, parts))
