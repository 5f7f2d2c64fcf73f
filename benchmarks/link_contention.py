# SPDX-License-Identifier: Apache-2.0
"""What copies of others take from a program that the host's side bounds: GPT-2 XL's forwards.

    python benchmarks/link_contention.py --output benchmarks/results/run/contention.json

No Penstock here: the model is resident and runs plainly, in turns while nothing is copied and
while page-locked memory is copied to the device without a pause, all of it given to a stream
before the forwards begin, so that the host has nothing to do with it. Each round has the median of
its steps, and of the time in them until the last launch. What a round with copies takes longer no
pager can give back, for it has to copy: from memory as it has it, or from write-combined memory,
which the processor's caches hold nothing of, so that copies need not look into them.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from launch_profile import forwards
from measure import output_parser, provenance, write_result

ROUNDS, STEPS = 6, 20
MIB = 1 << 20
COPY_BYTES = 64 * MIB
# Copies that are under way for as long as a round of the slowest host takes.
COPIES = 900
# Flags of cuMemHostAlloc: portable, as Penstock has it, and write-combined besides.
MEMORY = {"ordinary": 1, "write-combined": 1 | 4}


def page_locked(flags: int) -> Any:
    """Four buffers of random bytes, (4, COPY_BYTES), by cuMemHostAlloc."""
    import numpy
    import torch

    driver, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    status = driver.cuMemHostAlloc(
        ctypes.byref(pointer), ctypes.c_size_t(4 * COPY_BYTES), ctypes.c_uint(flags)
    )
    if status != 0 or pointer.value is None:
        raise OSError(f"cuMemHostAlloc: {status}")
    memory = (ctypes.c_uint8 * (4 * COPY_BYTES)).from_address(pointer.value)
    host = torch.from_numpy(numpy.frombuffer(memory, dtype=numpy.uint8)).view(4, COPY_BYTES)
    host.copy_(torch.randint(0, 255, host.shape, dtype=torch.uint8, device="cuda"))
    return host


def copying(flags: int) -> Callable[[], Any]:
    """Gives a stream more copies than a round takes, and returns the events around them."""
    import torch

    stream, host = torch.cuda.Stream(), page_locked(flags)
    device = torch.empty_like(host, device="cuda")

    def begin() -> Any:
        with torch.cuda.stream(stream):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            for i in range(COPIES):
                device[i % 4].copy_(host[i % 4], non_blocking=True)
            events[1].record()
            return events

    return begin


def timed(steps: Callable[[], tuple[float, float]]) -> dict[str, float]:
    launched, whole = zip(*(steps() for _ in range(STEPS)), strict=True)
    return {
        "launched_ms": round(statistics.median(launched), 3),
        "step_ms": round(statistics.median(whole), 3),
    }


def main() -> int:
    parser = output_parser(__doc__)
    args = parser.parse_args()
    import torch

    forward = forwards(wait=False)
    ways = {name: copying(flags) for name, flags in MEMORY.items()}
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
        rows.append({"round": number, "copies": None, **timed(step)})
        for name, begin in ways.items():
            torch.cuda.synchronize()
            first, last = begin()
            row = {"round": number, "copies": name, **timed(step)}
            row["copied_throughout"] = not last.query()
            last.synchronize()
            row["gb_per_s"] = round(COPIES * COPY_BYTES / 1e6 / first.elapsed_time(last), 2)
            rows.append(row)
        print(json.dumps(rows[-1 - len(ways) :]), flush=True)
    torch.cuda.synchronize()
    medians = {
        copies: statistics.median(row["step_ms"] for row in rows if row["copies"] == copies)
        for copies in (None, *MEMORY)
    }
    document = {
        "title": "What copies take from a program that the host bounds",
        "where": provenance(),
        "rows": rows,
        "quiet_ms": medians[None],
        "copying_ms": {name: medians[name] for name in MEMORY},
        "slower": {name: round(medians[name] / medians[None], 4) for name in MEMORY},
    }
    write_result(args.output, document)
    print({name or "quiet": round(ms, 2) for name, ms in medians.items()})
    return 0 if all(row.get("copied_throughout", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
