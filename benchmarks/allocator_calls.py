# SPDX-License-Identifier: Apache-2.0
"""What torch.empty(n) and its release cost under one allocator, in nanoseconds.

    python benchmarks/allocator_calls.py --allocator stitch

The sizes have been seen before, as in the steady state of a program; `live` other tensors are held
meanwhile. Each figure is the median over rounds of a loop's mean, and everything is measured twice
(`again_ns`: the A/A row). Python's own share is in all of them alike: `cpu_ns` is the same call for
a tensor in host memory of one byte.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from typing import Any

import allocators
from allocator_workloads import write

SIZES = (512, 64 << 10, 1 << 20, 20 << 20, 300 << 20)
LIVE = (0, 1_000, 10_000)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = allocators.allocator_parser(__doc__)
    parser.add_argument("--loops", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=30)
    return parser.parse_args(argv)


def time_calls(make: Any, *, loops: int, rounds: int) -> float:
    """Median nanoseconds of one make() and the release of what it made."""
    for _ in range(loops):
        make()
    samples = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(loops):
            make()
        samples.append((time.perf_counter_ns() - begin) / loops)
    return round(statistics.median(samples), 1)


def hold(torch: Any, device: str, count: int) -> list[Any]:
    """Many live tensors, small and not so small, with gaps between them."""
    draw = random.Random(count)
    made = [
        torch.empty(draw.choice((512, 4096, 70_000, 400_000)), dtype=torch.uint8, device=device)
        for _ in range(2 * count)
    ]
    draw.shuffle(made)
    return made[:count]


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    rows = []
    for live in LIVE[:2] if args.tiny else LIVE:
        held = hold(torch, args.device, live)
        for size in SIZES[:3] if args.tiny else SIZES:

            def make(size: int = size) -> Any:
                return torch.empty(size, dtype=torch.uint8, device=args.device)

            first, again = (time_calls(make, loops=args.loops, rounds=args.rounds) for _ in "ab")
            rows.append({"bytes": size, "live": live, "ns": first, "again_ns": again})
        del held
    return rows


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    allocators.begin(args, "torch")
    import torch

    def host() -> Any:
        return torch.empty(1, dtype=torch.uint8)

    baseline = time_calls(host, loops=args.loops, rounds=args.rounds)
    result = {
        "calls": True,
        "allocator": args.allocator,
        "device": args.device,
        "tiny": args.tiny,
        "cpu_ns": baseline,
        "rows": measure(args),
        "memory": allocators.memory_figures(args.device),
    }
    write(result, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
