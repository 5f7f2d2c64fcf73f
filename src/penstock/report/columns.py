# SPDX-License-Identifier: Apache-2.0
"""Results side by side: the columns that they have something for, and what they all share.

The same cells stand in the table of a terminal and in that of a page. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bound import NOISE
from penstock.units import format_bytes, format_number

from .result import Result
from .table import Column, print_table

EMULATED = (
    "There was no GPU: times say nothing, and the memory of a fine-tune is that of its recorded "
    "allocations, replayed on the allocator."
)
NOTHING = "-"


@dataclass(frozen=True)
class _Figure:
    """A column of numbers: its heading, the value of a result, and how it is written."""

    title: str
    value: Callable[[Result], Any]
    text: Callable[[Any], str]


def _difference(value: float) -> str:
    return "nothing" if value == 0 else f"{value:.2g}"


def _ratio(value: float) -> str:
    """Below 1 the ideal is wrong, and not the step fast."""
    return f"{value:.2f}{' (ideal wrong)' if value < 1 - NOISE else ''}"


_FIGURES = (
    _Figure("budget", lambda result: result.gpu_memory_bytes, format_bytes),
    _Figure("requested", lambda result: result.peak_requested_bytes, format_bytes),
    _Figure("active", lambda result: result.peak_active_bytes, format_bytes),
    _Figure("reserved", lambda result: result.peak_reserved_bytes, format_bytes),
    _Figure("utilisation", lambda result: result.utilisation, "{:.1%}".format),
    _Figure("on device", lambda result: result.peak_device_bytes, format_bytes),
    _Figure("driver ms", lambda result: result.driver_ms, format_number),
    _Figure("hit ratio", lambda result: result.hit_ratio, "{:.3f}".format),
    _Figure("in/step", lambda result: result.bytes_in, format_bytes),
    _Figure("out/step", lambda result: result.bytes_out, format_bytes),
    _Figure("step ms", lambda result: result.median_step_ms, format_number),
    _Figure("x ideal", lambda result: result.ratio_to_ideal, _ratio),
    _Figure("tokens/s", lambda result: result.tokens_per_second, format_number),
    _Figure("last loss", lambda result: result.last_loss, "{:.4f}".format),
    _Figure("loss differs by", lambda result: result.loss_difference, _difference),
)


@dataclass(frozen=True)
class Table:
    """Results as text.

    Attributes:
        headings: Of the columns of figures.
        cells: One row a result, a cell for each heading; empty for one that failed.
        shared: What the settings of all have in common.
        settings: What each has of its own beside that, and beside its name; often "".
        notes: What the figures are worth.
    """

    headings: list[str]
    cells: list[list[str]]
    shared: str
    settings: list[str]
    notes: list[str]


def tabulate(results: Sequence[Result]) -> Table:
    """Put results side by side, in their order."""
    done = [result for result in results if result.failure is None]
    figures = [each for each in _FIGURES if any(each.value(result) is not None for result in done)]
    first = done[0].setting if done else ()
    shared = [part for part in first if all(part in result.setting for result in done)]
    emulated = [result.name for result in done if result.emulated]
    which = "" if len(emulated) == len(done) else f"{', '.join(emulated)}: "
    return Table(
        headings=[figure.title for figure in figures],
        cells=[
            [] if result.failure else [_cell(figure, result) for figure in figures]
            for result in results
        ],
        shared=", ".join(shared),
        settings=[_own_setting(result, shared) for result in results],
        notes=[which + EMULATED] if emulated else [],
    )


def _own_setting(result: Result, shared: Sequence[str]) -> str:
    """What neither all results have, nor the name says already."""
    said = {*shared, *result.name.replace(": ", ", ").split(", ")}
    return ", ".join(part for part in result.setting if part not in said)


def _cell(figure: _Figure, result: Result) -> str:
    value = figure.value(result)
    return NOTHING if value is None else figure.text(value)


def print_results(results: Sequence[Result]) -> None:
    """Print what is shared, the table, and what failed, on stdout."""
    table = tabulate(results)
    titles = table.headings or ["outcome"]
    columns = [Column("result"), *(Column(title, right=True) for title in titles)]
    rows = []
    for result, cells in zip(results, table.cells, strict=True):
        blank = [""] * (len(titles) - 1)
        rows.append([result.name, *(cells or [*blank, result.failure or NOTHING])])
    if any(table.settings):
        columns.append(Column("setting"))
        rows = [[*row, text] for row, text in zip(rows, table.settings, strict=True)]
    if table.shared:
        print(f"{table.shared}\n")
    print_table(columns, rows)
    for line in table.notes:
        print(f"\n{line}")
    for result in results:
        if result.error:
            print(f"\n{result.name}: {result.error}")
