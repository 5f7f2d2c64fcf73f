# SPDX-License-Identifier: Apache-2.0
"""Result files, and their figures as cells of Markdown tables; for table.py and its pages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
GIB, MIB = 1 << 30, 1 << 20


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


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, without a line's end behind it."""
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def lines(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A table whose head is written as it is shown."""
    return table(head.split(" | "), rows)


def gib(size: float) -> str:
    """Bytes."""
    return f"{size / GIB:.2f}"


def percent(part: float) -> str:
    """A share of 1."""
    return f"{100 * part:.1f} %"
