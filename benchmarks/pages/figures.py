# SPDX-License-Identifier: Apache-2.0
"""Result files, and their figures as cells of Markdown tables; for table.py and its pages."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
GIB, MIB = 1 << 30, 1 << 20
Rows = Iterable[Any]  # of a table: keys for its cells, or the cells themselves
# How a cell is written, besides Python's own formats: in what, and with how many digits.
UNITS = {"GiB": (GIB, ".2f"), "MiB": (MIB, ".0f"), "GB": (1e9, ".2f"), "ms": (1, ",.1f")}


def result(name: str) -> dict[str, Any]:
    """A result file's content, by its name in the folder, without suffix."""
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def results(folder: str) -> list[tuple[str, dict[str, Any]]]:
    """Name and content of the results in a folder, the newest of a series first."""
    files = sorted((RESULTS / folder).glob("*.json"), reverse=True)
    return [(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in files]


def commit(document: dict[str, Any]) -> str:
    """Of which commit a result is, shortly."""
    return str(document.get("where", document)["commit"][:7])


def sourced(
    name: str, document: dict[str, Any], rows: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows with the file and the commit that they are from, which stand in the first one alone."""
    return [
        {**row, "source": "" if number else f"{name}, {commit(document)}"}
        for number, row in enumerate(rows)
    ]


def made(document: dict[str, Any]) -> str:
    """Where, when and at which commit a result was made."""
    where = document["where"]
    torch = [f"torch {where['torch']}"] if "torch" in where else []
    place = [where.get("card") or where["processor"], *torch, where["date"]]
    return "; ".join([*place, f"commit {where['commit'][:10]}"])


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, without a line's end behind it."""
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def lines(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A table whose head is written as it is shown."""
    return table(head.split(" | "), rows)


class Cells(string.Formatter):
    """Puts what a row has into cells; a figure that it has not is an empty cell.

    Formats are Python's own, those of UNITS, "%", and "yes" for what holds or does not.
    """

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        try:
            return super().get_field(field_name, args, kwargs)
        except (KeyError, TypeError):
            return None, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return ""
        if format_spec == "yes":
            return "yes" if value else "no"
        if format_spec == "%":
            return percent(value)
        per, form = UNITS.get(format_spec, (None, format_spec))
        return format(value / per if per else value, form)


def shown(head: str, cells: str, rows: Iterable[dict[str, Any]]) -> str:
    """A table whose cells are written as the row's keys and formats, as in {median_ms:ms}."""
    fill, kinds = Cells(), cells.split(" | ")
    return lines(head, ([fill.vformat(kind, (), row) for kind in kinds] for row in rows))


def columns(head: str, cells: str = "") -> Callable[[Callable[..., Rows]], Callable[..., str]]:
    """Makes a table of what gives its rows: of keys for these cells, or of cells themselves."""

    def made_of(rows: Callable[..., Rows]) -> Callable[..., str]:
        @wraps(rows)
        def table(*given: Any) -> str:
            found = rows(*given)
            return shown(head, cells, found) if cells else lines(head, found)

        return table

    return made_of


def gib(size: float) -> str:
    """Bytes."""
    return f"{size / GIB:.2f}"


def percent(part: float) -> str:
    """A share of 1."""
    return f"{100 * part:.1f} %"
