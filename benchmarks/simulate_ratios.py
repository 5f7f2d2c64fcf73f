# SPDX-License-Identifier: Apache-2.0
"""How far recorded programs are from the least that any policy takes, within several budgets.

python benchmarks/simulate_ratios.py TRACE... [--programs adamw lora ...] --json ratios.json

Each recording, those that are there and those of programs made up (programs/made_up.py), is
simulated at parts of what lives in it at one time, by Penstock and by pages on demand. Figures
are of the third iteration and those after it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from kit.measure import provenance, script_parser, write_result
from programs.made_up import PROGRAMS, write_program

from penstock.bound import shortest_ms
from penstock.native.simulate import Simulated, simulate
from penstock.trace import read_work

PARTS = (1.25, 1.5, 2.0, 4.0)
POLICIES = ("penstock", "lru", "belady")
LEARNED = 2  # iterations that do not count


def ratios(found: Simulated) -> list[tuple[float, float, float]]:
    """What each iteration takes, its ideal, and what no policy does it in less than, in ms."""
    speed = found.link_gb_per_s
    return [
        (
            step["ms"],
            shortest_ms(
                step["recorded_ms"],
                (step["least_bytes_in"], speed),
                (step["least_bytes_out"], speed),
            ),
            step["least_ms"],
        )
        for step in found.steps
    ][LEARNED:]


def row(found: Simulated, part: float, policy: str) -> dict[str, Any]:
    """The figures of one simulation."""
    steps, pairs = found.steps[LEARNED:], ratios(found)
    row: dict[str, Any] = {"peak_over_budget": part, "policy": policy, "iterations": len(steps)}
    if not pairs:
        return row
    row["median_ratio"] = statistics.median(ms / ideal for ms, ideal, _ in pairs)
    row["total_ratio"] = sum(ms for ms, _, _ in pairs) / sum(ideal for _, ideal, _ in pairs)
    row["median_ratio_to_least"] = statistics.median(ms / least for ms, _, least in pairs)
    row["total_ratio_to_least"] = sum(ms for ms, *_ in pairs) / sum(least for *_, least in pairs)
    row["median_ms"] = statistics.median(ms for ms, *_ in pairs)
    for key in ("bytes_in", "bytes_out", "least_bytes_in", "least_bytes_out"):
        row[key] = round(statistics.fmean(step[key] for step in steps))
    return row


def simulated(path: Path) -> list[dict[str, Any]]:
    """The rows of one recording."""
    trace = read_work(path)
    whole = simulate(trace, budget=trace.device_bytes, policy="lru", steps=1)
    peak = whole.figures["peak_bytes"]
    rows = []
    for part in PARTS:
        for policy in POLICIES:
            rows.append(row(simulate(trace, budget=int(peak / part), policy=policy), part, policy))
            print(path.stem, json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Simulate every recording and write what came of it."""
    parser = script_parser(__doc__)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--programs", nargs="*", default=[], choices=PROGRAMS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    document: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = [write_program(name, Path(folder)) for name in arguments.programs]
        for path in (*arguments.traces, *made):
            document[path.stem] = simulated(path)
    if arguments.json:
        write_result(arguments.json, {"where": provenance(card=False), "recordings": document})


if __name__ == "__main__":
    main()
