# SPDX-License-Identifier: Apache-2.0
"""How far a run is, on stderr: a bar on a terminal, a line now and then anywhere else.

Invariant: stdout is never touched; a stage that fails or is interrupted leaves the terminal as it
was. Off a terminal a stage prints a line for every tenth of its work, but not more than one a
second, and one every 30 s however slow it is. rich is imported only when it draws. Used by one
thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, TextIO

from penstock.text import printable

SHARE = 0.1
LEAST_S, MOST_S = 1.0, 30.0


class Advance(Protocol):
    """Told how much more of a stage is done, and what there is to say about it."""

    def __call__(self, amount: int, note: str = "") -> None:
        """`amount` more units are done."""


class Progress:
    """Shows stages, one after the other.

    Args:
        stream: Where to; None shows nothing.
        terminal: Whether to draw; by default if the stream is a terminal.
        clock: Seconds, for the pace of plain lines.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        terminal: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._terminal = stream is not None and stream.isatty() if terminal is None else terminal
        self._clock = clock

    @contextmanager
    def stage(self, title: str, total: int) -> Iterator[Advance]:
        """Show one stage.

        Args:
            title: What is being done.
            total: How many units of it there are.

        Yields:
            The function to call as work gets done.
        """
        if self._stream is None:
            yield lambda amount, note="": None
        elif self._terminal:
            with _bar(self._stream, title, total) as advance:
                yield advance
        else:
            yield _Lines(self._stream, title, total, self._clock)


def on_stderr() -> Progress:
    """The progress of a command."""
    return Progress(sys.stderr)


@contextmanager
def _bar(stream: TextIO, title: str, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bars(*columns, console=Console(file=stream), transient=True) as bars:
        task = bars.add_task(printable(title), total=total, note="")

        def advance(amount: int, note: str = "") -> None:
            bars.update(task, advance=amount, note=printable(note))

        yield advance


class _Lines:
    """One stage as lines of text."""

    def __init__(self, stream: TextIO, title: str, total: int, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._title = title
        self._total = max(1, total)
        self._clock = clock
        self._done = 0
        self._shown_share = 0.0
        self._shown_at = clock()

    def __call__(self, amount: int, note: str = "") -> None:
        self._done += amount
        share = self._done / self._total
        waited = self._clock() - self._shown_at
        due = share - self._shown_share >= SHARE - 1e-9 and waited >= LEAST_S
        if due or waited >= MOST_S or (share >= 1 and self._shown_share < 1):
            self._shown_share, self._shown_at = share, self._clock()
            line = printable(f"{self._title}: {min(share, 1):.0%}{f', {note}' if note else ''}")
            with suppress(OSError):  # a full disk is no reason to end the work
                print(line, file=self._stream, flush=True)
