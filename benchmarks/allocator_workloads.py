# SPDX-License-Identifier: Apache-2.0
"""One workload under one allocator, in a process of its own: memory, step times, losses.

    python benchmarks/allocator_workloads.py --workload gpt2xl_recompute --allocator stitch
    python benchmarks/allocator_workloads.py --workload gpt2xl_recompute --allocator native \
        --find-batch --cap 24GiB
    python benchmarks/allocator_workloads.py --workload calls --allocator stitch

A step is timed by the host's clock between two waits for the device, so that the allocator's own
time and the driver calls it makes are in it. The first pass over the batches is warm-up; peaks are
those of the whole process. `--find-batch` looks for the largest batch that a cap lets through,
recovering from each failure in the same process.

`calls` is what torch.empty(n) and its release cost, in nanoseconds. The sizes have been seen
before, as in the steady state of a program; `live` other tensors are held meanwhile. Each figure is
the median over rounds of a loop's mean, and everything is measured twice (`again_ns`: the A/A row).
Python's own share is in all of them alike: `cpu_ns` is the same call for a tensor in host memory of
one byte.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from allocator import process
from kit.measure import driver_used, settle, write_result

# Imported before a run begins: together they take longer than some runs.
AHEAD = (
    "torch",
    "transformers.models.opt.modeling_opt",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.generation.utils",
    "peft",
    "allocator.work",
)
CALLS = "calls"
SIZES = (512, 64 << 10, 1 << 20, 20 << 20, 300 << 20)
LIVE = (0, 1_000, 10_000)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = process.allocator_parser(__doc__)
    parser.add_argument("--workload", required=True, help=f"of allocator/work.py, or {CALLS}")
    parser.add_argument("--steps", type=int, default=None, help="default: all passes")
    parser.add_argument("--find-batch", action="store_true")
    parser.add_argument("--first-batch", type=int, default=None, help="where the search begins")
    parser.add_argument("--loops", type=int, default=500, help="of calls, in a round")
    parser.add_argument("--rounds", type=int, default=30, help="of calls")
    args = parser.parse_args(argv)
    if args.find_batch and not args.cap:
        parser.error("--find-batch needs --cap")
    if args.steps is not None and args.steps < 1:
        parser.error("--steps must be at least 1")
    return args


def build_task(work: Any, device: str, *, small: bool) -> Any:
    """What runs the steps of this workload."""
    if work.zero3:
        from allocator.work import Zero3Training as Task
    elif work.new_tokens:
        from allocator.work import Generation as Task
    else:
        from allocator.work import Training as Task
    return Task(work, device, small=small)


class Run:
    """One process: the task, its clock and its figures."""

    def __init__(self, args: argparse.Namespace, work: Any) -> None:
        import torch

        self.args, self.work, self.torch = args, work, torch
        settle()
        warnings.filterwarnings("ignore", message=".*determinis.*")
        self.before, self.highest = self.driver_used(), 0
        begin = time.perf_counter()
        self.task = build_task(work, args.device, small=args.tiny)
        self.wait()
        self.build_s = time.perf_counter() - begin
        self.begin = time.perf_counter()

    def driver_used(self) -> int:
        """Bytes in use since the context was made, asked between steps."""
        return driver_used() if self.args.device == "cuda" else 0

    def wait(self) -> None:
        if self.args.device == "cuda":
            self.torch.cuda.synchronize()

    def step(self, number: int) -> tuple[float, float]:
        """Milliseconds and outcome (the loss) of a step."""
        self.wait()
        begin = time.perf_counter()
        outcome = self.task.step(number)
        self.wait()
        elapsed = (time.perf_counter() - begin) * 1e3
        self.highest = max(self.highest, self.driver_used() - self.before)
        return elapsed, float(outcome)

    def state(self) -> list[float]:
        """Seconds since the steps began, reserved bytes, the allocator's driver calls so far."""
        if self.args.device == "cpu":
            return [round(time.perf_counter() - self.begin, 4), 0, 0]
        from penstock.finetune.memory import driver_calls

        stats = self.torch.cuda.memory_stats()
        reserved = stats.get("reserved_bytes.all.current", 0)
        return [round(time.perf_counter() - self.begin, 4), reserved, driver_calls(stats)]

    def common(self) -> dict[str, Any]:
        args = self.args
        return {
            "workload": self.work.name,
            "title": self.work.title,
            "allocator": args.allocator,
            "cap_bytes": args.cap,
            "device": args.device,
            "tiny": args.tiny,
            "build_s": round(self.build_s, 3),
            "used_by_driver_bytes": self.highest,
            "memory": process.memory_figures(args.device),
            "allocator_counters": stitch_counters(args),
        }


def stitch_counters(args: argparse.Namespace) -> dict[str, Any]:
    """What the stitching allocator counts beyond torch's own names."""
    if args.allocator != "stitch" or args.device == "cpu":
        return {}
    import torch

    stats = torch.cuda.memory_stats()
    return {name: value for name, value in stats.items() if name.startswith("penstock")}


def run_steps(run: Run) -> dict[str, Any]:
    """All steps; those after the first pass (or the first half of --steps) count as timed."""
    work = run.work
    total = run.args.steps or work.steps
    warm = len(work.shapes) if run.args.steps is None else total // 2
    times, outcomes, states = [], [], []
    for number in range(total):
        elapsed, outcome = run.step(number)
        times.append(round(elapsed, 3))
        outcomes.append(outcome)
        states.append(run.state())
    return {
        "steps": total,
        "timed_from": warm,
        "shapes": [list(work.order(number)) for number in range(total)],
        "step_ms": times,
        "timed_ms": round(sum(times[warm:]), 3),
        "outcomes": outcomes,
        "state_after_step": states,
        **run.common(),
    }


def batch_fits(run: Run, sequences: int) -> dict[str, Any]:
    """Run every length once with this batch; out of memory is an answer, not an end."""
    from allocator.work import with_batch

    from penstock.finetune.memory import out_of_memory

    work = with_batch(run.work, sequences)
    run.task.use(work, run.args.device)
    begin = time.perf_counter()
    row: dict[str, Any] = {"batch": sequences, "fits": True}
    try:
        for number in range(work.steps):
            run.step(number)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        row.update(fits=False, error=type(error).__name__, message=str(error)[:300])
    run.task.recover()
    gc.collect()
    if run.args.device == "cuda":
        run.torch.cuda.empty_cache()
    row["seconds"] = round(time.perf_counter() - begin, 2)
    print(f"  batch {sequences}: {'fits' if row['fits'] else row['error']}", file=sys.stderr)
    return row


def run_find_batch(run: Run) -> dict[str, Any]:
    """The largest batch under the cap."""
    from penstock.finetune.search import largest

    tries: list[dict[str, Any]] = []

    def fits(batch: int) -> bool:
        tries.append(batch_fits(run, batch))
        return bool(tries[-1]["fits"])

    best = largest(fits, first=run.args.first_batch or 4 * run.work.shapes[0][0])
    return {"find_batch": True, "largest_batch": best, "tries": tries, **run.common()}


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


def run_calls(args: argparse.Namespace) -> dict[str, Any]:
    """Nanoseconds of a call by its size, among live tensors."""
    import torch

    def cost(size: int, device: str) -> float:
        return time_calls(
            lambda: torch.empty(size, dtype=torch.uint8, device=device),
            loops=args.loops,
            rounds=args.rounds,
        )

    host, rows = cost(1, "cpu"), []
    for live in LIVE[:2] if args.tiny else LIVE:
        held = hold(torch, args.device, live)
        for size in SIZES[:3] if args.tiny else SIZES:
            first, again = (cost(size, args.device) for _ in "ab")
            rows.append({"bytes": size, "live": live, "ns": first, "again_ns": again})
        del held
    return {
        "calls": True,
        "allocator": args.allocator,
        "device": args.device,
        "tiny": args.tiny,
        "cpu_ns": host,
        "rows": rows,
        "memory": process.memory_figures(args.device),
    }


def write(result: dict[str, Any], target: str | None) -> None:
    if target is None:
        print(json.dumps(result, indent=2))
    else:
        write_result(Path(target), result)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if args.workload == CALLS:
        process.begin(args, "torch")
        write(run_calls(args), args.json)
        return 0
    process.begin(args, *AHEAD)
    from allocator.work import WORKLOADS, tiny

    if args.workload not in WORKLOADS:
        print(
            f"no workload {args.workload}; there are {', '.join(WORKLOADS)}, {CALLS}",
            file=sys.stderr,
        )
        return 2
    work = WORKLOADS[args.workload]
    run = Run(args, tiny(work) if args.tiny else work)
    write((run_find_batch if args.find_batch else run_steps)(run), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
