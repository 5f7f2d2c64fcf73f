# SPDX-License-Identifier: Apache-2.0
"""Write docs/benchmarks.md, and README's first table, from the result files.

python benchmarks/table.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TARGET = ROOT / "docs" / "benchmarks.md"

README = ROOT / "README.md"
BEGIN, END = "<!-- figures: forward -->", "<!-- end of figures -->"
SHOWN = "gpt3_6.7b_fp16.json"  # in README

HEAD = """# Benchmarks

Written by `python benchmarks/table.py` from the files in `benchmarks/results/`; each table names
the command that made it. Times are medians; every step is waited for before the next is given. The
*ideal* is max(T, (M - S) / B): T the resident step, M the bytes of the weights without embedding
tables, which stay on the host and of which a pass reads only rows, S what the budget leaves beside
activations and workspace, B the page-locked copy speed measured in the same process. A ratio below
1 means that the resident step it is held against was a slow one. *Used* is the fall of the driver's
own free-memory figure while passes run, without the CUDA context. *Exact*: the logits equal the
resident model's bit for bit, compared on the GPU.

All figures predate the unmapping of evicted addresses: they are those of `safety="fast"` today.
"""


def gib(size: float) -> str:
    return f"{size / (1 << 30):.2f}"


def row_of(row: dict[str, Any]) -> str:
    def number(key: str, form: str = ".3f") -> str:
        return f"{row[key]:{form}}" if key in row else ""

    again = row.get("again", {}).get("median_ms")
    exact = {True: "yes", False: "no"}.get(row.get("exact", row.get("close")), "")
    if "close" in row:
        exact = "close" if row["close"] else "no"
    moved = row.get("stats", {}).get("iteration_bytes_in", row.get("bytes_in"))
    cells = [
        row["how"],
        gib(row["gpu_memory_bytes"]) if "gpu_memory_bytes" in row else "",
        number("median_ms", ".1f"),
        f"{again:.1f}" if again else "",
        number("ratio_to_floor"),
        gib(row["used_by_driver_bytes"]) if "used_by_driver_bytes" in row else "",
        f"{moved / 1e9:.2f}" if moved is not None else "",
        exact,
    ]
    return "| " + " | ".join(cells) + " |"


def section(path: Path) -> str:
    document = json.loads(path.read_text())
    work, where = document["work"], document["where"]
    lines = [
        f"## {document.get('title', path.stem)}",
        "",
        f"{where['card']}; torch {where['torch']}; {where['date']}; commit "
        f"{where['commit'][:10]}. `{document.get('command', work)}`",
        "",
        "| how | budget GiB | ms | again (A/A) | x ideal | used GiB | GB in | exact |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *[row_of(row) for row in document["rows"]], ""])


def readme_table(document: dict[str, Any]) -> str:
    """README's table of one result: a row for each way, a column for each budget."""
    rows = document["rows"]
    ours = [row for row in rows if row["how"] == "penstock" and row["ratio_to_floor"] > 1.01]
    budgets = sorted((row["gpu_memory_bytes"] for row in ours), reverse=True)
    lines = [
        "| how | " + " | ".join(f"{budget >> 30} GiB" for budget in budgets) + " |",
        "|---|" + "---|" * len(budgets),
    ]

    def add(name: str, values: dict[int, float]) -> None:
        cells = [f"{values[budget]:,.0f} ms" if budget in values else "" for budget in budgets]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    add("**Penstock**", {row["gpu_memory_bytes"]: row["median_ms"] for row in ours})
    add("the ideal", {row["gpu_memory_bytes"]: row["floor_ms"] for row in ours})
    made = [row for row in rows if row["how"].startswith("hand-made")]
    add(
        "a double-buffered stream made by hand for this model",
        {row["gpu_memory_bytes"]: row["median_ms"] for row in made},
    )
    for row in rows:
        if row["how"].startswith("accelerate"):
            add(f"{row['how']}, all weights offloaded", dict.fromkeys(budgets, row["median_ms"]))
    return "\n".join(lines)


def with_table(readme: str, table: str) -> str:
    """`readme` with `table` between its two marks."""
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a page is not current")
    args = parser.parse_args()
    # Results of other shapes lie beside them; those have pages of their own.
    files = [
        path for path in sorted(RESULTS.glob("*.json")) if "work" in json.loads(path.read_text())
    ]
    pages = {
        TARGET: "\n".join([HEAD, *[section(path) for path in files]]),
        README: with_table(
            README.read_text(), readme_table(json.loads((RESULTS / SHOWN).read_text()))
        ),
    }
    if args.check:
        return 0 if all(path.read_text() == text for path, text in pages.items()) else 1
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
