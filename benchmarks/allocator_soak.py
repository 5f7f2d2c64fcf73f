# SPDX-License-Identifier: Apache-2.0
"""Soak of one allocator: every tensor carries a pattern of its own, verified before it is freed.

    python benchmarks/allocator_soak.py --allocator stitch --cap 6GiB --seconds 30

Several threads with several streams each allocate, fill, hand tensors to other streams
(record_stream, then free at once) and to other threads, run out of memory on purpose and recover,
and empty the cache at random; one more captures CUDA graphs with private pools and replays them
among all that. The device checks every element in stream order, with delays in the streams, so that
memory that is handed out too early is overwritten before it is looked at. Exit code 1 on any
mismatch, error or leak; each mismatch is printed with its stream, size and address.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import threading
import time
from collections import Counter
from typing import Any

from allocator import process
from allocator_workloads import write
from kit.measure import release

# What may stay after everything was dropped: torch keeps a generator's state for graphs.
LEAK_ALLOCATED = 1 << 20
LEAK_RESERVED = 64 << 20


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = process.allocator_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--streams", type=int, default=3, help="of each thread")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--sabotage", action="store_true", help="overwrite one element: the soak must report it"
    )
    return parser.parse_args(argv)


class Shared:
    """What the threads have in common."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.stop = threading.Event()
        self.lock = threading.Lock()
        # Held while a graph is captured, and while memory is driven to its end: a capture must not
        # meet the retries of an allocation that failed.
        self.capture = threading.Lock()
        self.exchange: list[Any] = []
        self.counts: Counter[str] = Counter()
        self.mismatches: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.sabotage_left = 1 if args.sabotage else 0

    def add(self, counts: Counter[str], mismatches: list[dict[str, Any]]) -> None:
        with self.lock:
            self.counts.update(counts)
            self.mismatches.extend(mismatches)

    def take_sabotage(self) -> bool:
        with self.lock:
            left, self.sabotage_left = self.sabotage_left, 0
        return bool(left)

    def put(self, item: Any) -> None:
        with self.lock:
            self.exchange.append(item)

    def take(self) -> Any:
        with self.lock:
            return self.exchange.pop(0) if self.exchange else None


def guarded(shared: Shared, body: Any) -> None:
    """Run a thread's work; an error in one ends them all."""
    try:
        body()
    except BaseException as error:
        import traceback

        with shared.lock:
            shared.errors.append(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        shared.stop.set()


def soak(shared: Shared) -> None:
    """Start the threads, wait for the time to pass, end them."""
    from allocator.soak import GraphWorker, Worker

    args = shared.args
    workers: list[Any] = [Worker(shared, number) for number in range(args.threads)]
    if args.device == "cuda":
        workers.append(GraphWorker(shared, args.threads))
    threads = [
        threading.Thread(target=guarded, args=(shared, worker.run), name=f"soak {number}")
        for number, worker in enumerate(workers)
    ]
    for thread in threads:
        thread.start()
    shared.stop.wait(args.seconds)
    shared.stop.set()
    for thread in threads:
        thread.join()
    shared.exchange.clear()


def leftovers(device: str) -> dict[str, int]:
    """What is still held after everything was dropped and the cache emptied."""
    if device == "cpu":
        return {"allocated_bytes": 0, "reserved_bytes": 0}
    import torch

    release()
    return {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
    }


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if args.cap is None:
        args.cap = 6 << 30 if args.device == "cuda" else 64 << 20
    process.begin(args, "torch")
    faulthandler.dump_traceback_later(args.seconds + 120, exit=True)
    shared = Shared(args)
    begin = time.perf_counter()
    soak(shared)
    seconds = time.perf_counter() - begin
    memory = process.memory_figures(args.device)
    left = leftovers(args.device) if not shared.errors else {}
    leaked = left.get("allocated_bytes", 0) > LEAK_ALLOCATED
    leaked |= left.get("reserved_bytes", 0) > LEAK_RESERVED
    result = {
        "soak": True,
        "allocator": args.allocator,
        "device": args.device,
        "tiny": args.tiny,
        "cap_bytes": args.cap,
        "seconds": round(seconds, 2),
        "threads": args.threads,
        "streams": args.streams * args.threads,
        "counts": dict(sorted(shared.counts.items())),
        "mismatches": len(shared.mismatches),
        "mismatch_list": shared.mismatches[:20],
        "errors": shared.errors,
        "left": left,
        "leaked": leaked,
        "passed": not (shared.mismatches or shared.errors or leaked),
        "memory": memory,
    }
    for error in shared.errors:
        print(error, file=sys.stderr)
    write(result, args.json)
    faulthandler.cancel_dump_traceback_later()
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
