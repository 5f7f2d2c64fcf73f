# SPDX-License-Identifier: Apache-2.0
"""What `penstock simulate` says of a recorded program, beside what the program then took.

    python benchmarks/simulate_check.py --output benchmarks/results/simulate/h200-7.json

The program runs once with all the memory there is, recorded; then under budgets of what it needs,
divided. Each of these is simulated from the one recording, at the link's speed as measured here;
and it is recorded itself, and simulated from that (`own`): on the same host at the same moment.
Steps follow each other at once: what a program does on the host in between is in its recording too.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kit.measure import link_speed, output_parser
from kit.record import Record
from kit.under import PROGRAMS, penstock, run, under

from penstock.units import GIB


def simulate(trace: Path, budget: int, speed: float, *more: str) -> dict[str, Any]:
    """The simulation's JSON."""
    command = penstock(
        "simulate", str(trace), "--gpu-memory", str(budget), "--link", f"{speed:.2f}"
    )
    done = subprocess.run([*command, *more, "--json"], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        return {"error": done.stderr[-400:]}
    return dict(json.loads(done.stdout))


def paged_gib(said: list[str]) -> float | None:
    """What the line at the end of a run says was paged in."""
    found = re.search(r"([\d.]+) GiB paged in", " ".join(said))
    return float(found.group(1)) if found else None


def beside(measured: dict[str, Any], modelled: dict[str, Any]) -> dict[str, Any]:
    """The medians of the steps after the program has been learned, and how far they are apart."""
    if "error" in measured or "error" in modelled:
        return {}
    took = statistics.median(measured["step_ms"][len(measured["step_ms"]) // 2 :])
    said = statistics.median(modelled["step_ms"][-modelled["steady_steps"] :])
    return {"measured_ms": took, "simulated_ms": said, "ms_off_by": said / took - 1}


def main() -> int:
    parser = output_parser(__doc__)
    parser.add_argument("--model", default="gpt2-xl")
    parser.add_argument("--ratios", nargs="+", type=float, default=[1.5, 2.0, 4.0])
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()
    speed = link_speed()
    options = ["--model", args.model, "--steps", str(args.steps), "--no-digests"]
    program = [sys.executable, str(PROGRAMS / "hf_lm.py"), *options]
    record = Record(
        args.output,
        title="penstock simulate beside the runs that it is about",
        link_gb_per_s=round(speed, 2),
        program=" ".join(program[1:]),
    )
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "run.trace"
        recorded = run(penstock("run", "--record", str(trace), "--summary", "--", *program), 120)
        record.document["recorded"] = recorded
        record.document["trace_bytes"] = trace.stat().st_size if trace.exists() else 0
        if "error" in recorded:
            print(recorded["error"])
            record.write()
            return 1
        need = recorded["peak_allocated_bytes"]
        for ratio in args.ratios:
            budget = int(need / ratio)
            measured = run([*under(budget), *program], 120)
            # By its own iterations: cut by number, what comes before the first would be in them.
            modelled = simulate(trace, budget, speed)
            whole = simulate(trace, budget, speed, "--steps", "1")
            row = {"ratio": ratio, "budget_bytes": budget, "measured": measured}
            row |= {"simulated": modelled, **beside(measured, modelled)}
            if "ms_off_by" in row and "error" not in whole:
                row["measured_gib_in"] = paged_gib(measured["said"])
                row["simulated_gib_in"] = whole["step_bytes_in"][0] / GIB
            paged = trace.with_name(f"paged-{ratio:g}.trace")
            again = run([*under(budget, "--record", str(paged)), *program], 120)
            said = simulate(paged, budget, speed)
            row["own"] = {"measured": again, "simulated": said, **beside(again, said)}
            record.add(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
