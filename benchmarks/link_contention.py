# SPDX-License-Identifier: Apache-2.0
"""What copies of others take from a program that the host's side bounds: GPT-2 XL's forwards.

    python benchmarks/link_contention.py --output benchmarks/results/run/contention.json

No Penstock here: the model is resident and runs plainly, in turns while nothing is copied and
while page-locked memory is copied to the device without a pause, all of it given to a stream
before the forwards begin, so that the host has nothing to do with it. Each round has the median of
its steps, and of the time in them until the last launch. What a round with copies takes longer no
pager can give back, for it has to copy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launch_profile import forwards
from measure import provenance, write_result

ROUNDS, STEPS = 6, 20
MIB = 1 << 20
COPY_BYTES = 64 * MIB
# Copies that are under way for as long as a round of the slowest host takes.
COPIES = 900


def copying() -> Callable[[], Any]:
    """Gives a stream more copies than a round takes, and returns the event behind them."""
    import torch

    stream = torch.cuda.Stream()
    host = torch.randint(0, 255, (4, COPY_BYTES), dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")

    def begin() -> Any:
        with torch.cuda.stream(stream):
            for i in range(COPIES):
                device[i % 4].copy_(host[i % 4], non_blocking=True)
            return stream.record_event()

    return begin


def timed(steps: Callable[[], tuple[float, float]]) -> dict[str, float]:
    launched, whole = zip(*(steps() for _ in range(STEPS)), strict=True)
    return {
        "launched_ms": round(statistics.median(launched), 3),
        "step_ms": round(statistics.median(whole), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    import torch

    forward = forwards(wait=False)
    begin = copying()
    compute = torch.cuda.current_stream()

    def step() -> tuple[float, float]:
        start = time.perf_counter()
        forward()
        launched = time.perf_counter()
        compute.synchronize()  # and not the copies
        return (launched - start) * 1e3, (time.perf_counter() - start) * 1e3

    for _ in range(STEPS):
        step()
    rows: list[dict[str, Any]] = []
    for number in range(ROUNDS):
        torch.cuda.synchronize()
        rows.append({"round": number, "copies": False, **timed(step)})
        behind = begin()
        row = {"round": number, "copies": True, **timed(step)}
        row["copied_throughout"] = not behind.query()
        rows.append(row)
        print(json.dumps(rows[-2:]), flush=True)
    torch.cuda.synchronize()
    medians = {
        copies: statistics.median(row["step_ms"] for row in rows if row["copies"] == copies)
        for copies in (False, True)
    }
    document = {
        "title": "What copies take from a program that the host bounds",
        "where": provenance(),
        "rows": rows,
        "quiet_ms": medians[False],
        "copying_ms": medians[True],
        "slower": round(medians[True] / medians[False], 4),
    }
    write_result(args.output, document)
    print(f"{medians[False]:.2f} ms, {medians[True]:.2f} while copies are made")
    return 0 if all(row.get("copied_throughout", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
