# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs under `penstock run`, at fractions of the memory that they need.

    python benchmarks/run_programs.py --output benchmarks/results/run/h200.json

Each program runs plainly, plainly again (A/A), and under budgets of what it needs, divided by 0.8
(it fits), 1.25, 1.5, 2 and 4. Every step's output is compared bit for bit with the plain run's.

The ideal is max(T, (M - S) / B): T the plain step, the shorter of both, M the bytes of its weights,
S what the budget leaves of itself after everything else that was allocated at the peak, B the
page-locked copy speed measured in this run. Steps and rounds of generation (a prompt of 128 tokens
and 16 more) are the last six, after the order of uses has been learned and the kernels of both have
stood their test.
"""

from __future__ import annotations

import argparse
import sys

from kit.measure import link_speed, output_parser
from kit.record import Record
from kit.under import LAST, PROGRAMS, median_of_last, run, under

from penstock.bound import must_cross, shortest_ms
from penstock.units import parse_size

PROGRAM = PROGRAMS / "hf_lm.py"
RATIOS = (0.8, 1.25, 1.5, 2.0, 4.0)


def add_rows(model: str, args: argparse.Namespace, speed: float, record: Record) -> None:
    """The rows of one model."""
    options = [str(PROGRAM), "--model", model, "--steps", str(args.steps)]
    options += ["--generate", str(args.generate), "--rounds", str(args.rounds)]
    plain = [run([sys.executable, *options], 120) for _ in range(2)]
    first = plain[0]
    for how, each in zip(("plain", "again"), plain, strict=True):
        record.add({"model": model, "how": how, **each})
    if "error" in first:
        return
    need, weights = first["peak_allocated_bytes"], first["weight_bytes"]
    rounds = min(LAST, args.rounds - 1)
    # Either may have met a slow spell of the host.
    done = [each for each in plain if "error" not in each]
    plain_ms = min(filter(None, (median_of_last(each["step_ms"]) for each in done)), default=None)
    tokens = (median_of_last(each["token_ms"], rounds) for each in done)
    plain_token = min(filter(None, tokens), default=None)
    budgets = [parse_size(text) for text in args.gpu_memory] or [
        int(need / ratio) for ratio in args.ratios
    ]
    for budget in budgets:
        ratio = round(need / budget, 3)
        for safety in args.safety:
            command = [*under(budget, "--safety", safety), sys.executable, *options]
            row = {"model": model, "how": "run", "ratio": ratio, "safety": safety}
            row |= {"budget_bytes": budget, **run(command, 150)}
            crossing = must_cross(weights, budget - (need - weights)), speed
            for name, base in (("step_ms", plain_ms), ("token_ms", plain_token)):
                if not row.get(name):
                    continue
                last = LAST if name == "step_ms" else rounds
                took = median_of_last(row[name], last)
                ideal = shortest_ms(base, crossing)
                row |= {f"median_{name}": took, f"ideal_{name}": round(ideal, 3)}
                row |= {f"{name}_to_ideal": round(took / ideal, 3)}
                row |= {f"{name}_to_plain": round(took / base, 3)}
            if row.get("digests"):
                row["same"] = row["digests"] == first["digests"]
                row["same"] = row["same"] and row["generated"] == first["generated"]
            record.add(row)


def main() -> int:
    parser = output_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["gpt2-xl", "6.7b"])
    parser.add_argument("--ratios", nargs="+", type=float, default=list(RATIOS))
    parser.add_argument("--gpu-memory", nargs="+", default=[], help="budgets, not --ratios")
    parser.add_argument("--safety", nargs="+", default=["normal"], help="twice: an A/A row")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--generate", type=int, default=16, help="tokens")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    speed = link_speed()
    title = "Unmodified programs under penstock run"
    record = Record(args.output, title=title, link_gb_per_s=round(speed, 2))
    for model in args.models:
        add_rows(model, args, speed, record)
    wrong = [row for row in record.rows if "error" in row or row.get("same") is False]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
