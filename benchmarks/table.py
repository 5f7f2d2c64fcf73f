# SPDX-License-Identifier: Apache-2.0
"""Write docs/benchmarks.md from the result files: figures in the docs come from nowhere else.

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

HEAD = """# Benchmarks

Written by `python benchmarks/table.py` from the files in `benchmarks/results/`; each table names
the command that made it. Times are medians; every step is waited for before the next is given. The
*ideal* is max(T, (M - S) / B): T the resident step, M the bytes of the weights, S what the budget
leaves beside activations and workspace, B the page-locked copy speed measured in the same process.
The *floor* is stricter: M without embedding tables, of which a pass reads only rows. *Used* is the
fall of the driver's own free-memory figure while passes run, without the CUDA context. *Exact*: the
logits equal the resident model's bit for bit, compared on the GPU.
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
        number("ratio_to_ideal"),
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
        "| how | budget GiB | ms | again (A/A) | x ideal | x floor | used GiB | GB in | exact |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *[row_of(row) for row in document["rows"]], ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if the page is not current")
    args = parser.parse_args()
    files = sorted(path for path in RESULTS.glob("*.json"))
    text = "\n".join([HEAD, *[section(path) for path in files]])
    if args.check:
        return 0 if TARGET.exists() and TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
