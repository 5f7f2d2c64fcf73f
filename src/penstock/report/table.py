# SPDX-License-Identifier: Apache-2.0
"""A table on stdout: drawn by rich on a terminal, aligned plain text anywhere else.

Invariant: plain output has no escape codes, no wrapping and one line a row, so that it can be
piped into other tools. Colours follow NO_COLOR, FORCE_COLOR and TERM as rich understands them.
rich is imported only when it draws.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.text import printable

if TYPE_CHECKING:
    from rich.table import Table

# The styles of the words that a status column holds.
STATUS_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


# The least letters that a column of names has on a line, and the space between columns.
NAME, GAP = 16, 2


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        title: Its heading.
        right: Whether its cells are aligned to the right, as numbers are.
        status: Whether its cells are the words of `STATUS_STYLES`.
    """

    title: str
    right: bool = False
    status: bool = False


def on_terminal() -> bool:
    """Whether stdout is drawn for a person: a terminal, or one that FORCE_COLOR stands in for."""
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print the rows under their headings.

    Args:
        columns: The columns, left to right.
        rows: One sequence of cells a row, as long as `columns`.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    if on_terminal():
        _draw(columns, shown)
    else:
        print(_plain(columns, shown))


def _plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    lines = [[column.title for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    texts = []
    for line in lines:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, width, cell in zip(columns, widths, line, strict=True)
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console

    console = Console()
    for number, chosen in enumerate(_side_by_side(columns, rows, console.width)):
        if number:
            console.print()
        console.print(
            _drawn([columns[at] for at in chosen], [[row[at] for at in chosen] for row in rows])
        )


def _side_by_side(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> list[list[int]]:
    """Which columns go into each table, so that no number is cut: names may be broken, they not.

    The columns of names at the left stand in every one.
    """
    needed = [
        max(len(text) for text in (column.title, *(row[at] for row in rows)))
        for at, column in enumerate(columns)
    ]
    names = next((at for at, column in enumerate(columns) if column.right), len(columns))
    left = sum(min(most, NAME) + GAP for most in needed[:names])
    tables: list[list[int]] = [[]]
    room = width - left
    for at in range(names, len(columns)):
        takes = (needed[at] if columns[at].right else min(needed[at], NAME)) + GAP
        if tables[-1] and takes > room:
            tables.append([])
            room = width - left
        tables[-1].append(at)
        room -= takes
    return [[*range(names), *chosen] for chosen in tables]


def _drawn(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=column.right,
            overflow="fold",
        )
    for row in rows:
        table.add_row(
            *(
                Text(cell, style=STATUS_STYLES.get(cell, "") if column.status else "")
                for column, cell in zip(columns, row, strict=True)
            )
        )
    return table
