# SPDX-License-Identifier: Apache-2.0
"""Full fine-tuning within budgets: GPT-2 XL and a 6.7B shape, resident and by attach_training.

    python benchmarks/training_budget.py --output benchmarks/results/training/h200.json

fp32 master weights, bf16 autocast, AdamW (fused), recomputation of every layer; models are those of
transformers with random weights. One process: the link's speed in both directions at once, then for
each model plain PyTorch (twice: the second is the A/A row), then every budget. Each step is waited
for. Losses of all rows come from the same seeds and are compared step by step.

The ideal is max(T, in / B_in, out / B_out): T the resident step, in and out the least bytes that a
step must move when everything but PyTorch's own peak is room for blocks, B the page-locked copy
speed with both directions at work.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from measure import FreeMemoryWatch, output_parser, provenance, spread, write_result
from training_peers import fsdp_offload

from penstock import attach_training
from penstock.paging.training.stats import least_traffic
from penstock.units import GIB, format_bytes, parse_size

# GPT-2's architecture: layers, width, heads; the 6.7B shape is that of GPT-3.
SHAPES = {
    "gpt2_xl": (48, 1600, 25),
    "gpt3_6.7b": (32, 4096, 32),
    "tiny": (4, 128, 4),
}
BUDGETS = {"gpt2_xl": "16GiB,12GiB,9GiB", "gpt3_6.7b": "40GiB", "tiny": "4MiB,3MiB"}


def arguments() -> argparse.Namespace:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--models", default="gpt2_xl,gpt3_6.7b")
    parser.add_argument("--budgets", default=None, help="comma-separated; default by model")
    parser.add_argument("--device", default="cuda", help="cuda or emulated")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--warmups", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--limit", type=float, default=540, help="seconds; rows that are left over")
    parser.add_argument("--chunk-size", default=None)
    parser.add_argument("--look-ahead", default=None)
    parser.add_argument("--no-resident", action="store_true", help="without the resident rows")
    parser.add_argument("--peers", action="store_true", help="FSDP2 with CPUOffloadPolicy too")
    return parser.parse_args()


class Bench:
    """One model shape and its batches."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name = name
        self.args = args
        self.cuda = args.device == "cuda"
        self.device = torch.device("cuda", 0) if self.cuda else torch.device("cpu")
        generator = torch.Generator().manual_seed(1)
        self.vocabulary = 512 if name == "tiny" else 50257
        shape = (4, args.batch, args.seq_len)
        batches = torch.randint(0, self.vocabulary, shape, generator=generator)
        self.batches = list(batches.to(self.device))

    def model(self) -> Any:
        """The model with the weights of its seed, made where it computes."""
        from transformers import GPT2Config, GPT2LMHeadModel

        layers, width, heads = SHAPES[self.name]
        config = GPT2Config(
            n_layer=layers,
            n_embd=width,
            n_head=heads,
            vocab_size=self.vocabulary,
            n_positions=max(1024, self.args.seq_len),
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
        torch.manual_seed(0)
        with self.device:
            model = GPT2LMHeadModel(config)
        model.train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(self, model: Any, optimizer: torch.optim.Optimizer, number: int) -> torch.Tensor:
        ids = self.batches[number % len(self.batches)]
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def run(self, step: Callable[[int], torch.Tensor]) -> dict[str, Any]:
        """Warm-up and timed steps; milliseconds, losses and memory."""
        losses, times = [], []
        watch: Any = nullcontext()
        free = 0
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            watch = FreeMemoryWatch()
        first_ms = 0.0
        with watch:
            for number in range(self.args.warmups + self.args.steps):
                begin = time.perf_counter()
                losses.append(step(number).item())  # .item() waits
                if self.cuda:
                    torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) * 1e3)
                first_ms = first_ms or times[0]
        row = {**spread(times[self.args.warmups :]), "first_ms": round(first_ms, 1)}
        row["losses"] = losses
        if self.cuda:
            free = watch.lowest
            row["lowest_free_bytes"] = free
            row["torch_peak_bytes"] = torch.cuda.max_memory_allocated()
            row["torch_peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return row


def both_ways(size: int = 1 << 28, repeats: int = 8) -> tuple[float, float]:
    """GB/s in and out of page-locked copies that run at the same time."""
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    speeds = []
    for _ in range(2):  # the first warms up
        torch.cuda.synchronize()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(2)]
        for way, stream in enumerate(streams):
            events[way][0].record(stream)
        for _ in range(repeats):
            for way, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    if way == 0:
                        device[0].copy_(host[0], non_blocking=True)
                    else:
                        host[1].copy_(device[1], non_blocking=True)
        for way, stream in enumerate(streams):
            events[way][1].record(stream)
        torch.cuda.synchronize()
        speeds = [size * repeats / 1e6 / begin.elapsed_time(end) for begin, end in events]
    return speeds[0], speeds[1]


@contextmanager
def cleared(bench: Bench) -> Iterator[int]:
    """Free device memory, in bytes, with nothing of the last row left."""
    gc.collect()
    if bench.cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        yield torch.cuda.mem_get_info()[0]
    else:
        yield 0
    gc.collect()
    if bench.cuda:
        torch.cuda.empty_cache()


def resident_rows(bench: Bench) -> list[dict[str, Any]]:
    """Plain PyTorch, and the same again in the same process."""
    with cleared(bench) as free:
        model = bench.model()
        optimizer = bench.optimizer(model)
        rows = []
        for how in ("resident", "again"):
            row = bench.run(lambda number: bench.step(model, optimizer, number))
            if bench.cuda:
                row["used_bytes"] = free - row.pop("lowest_free_bytes")
            rows.append({"model": bench.name, "how": how, **row})
        rows[1].pop("losses")  # it went on from the first's weights
        model = optimizer = None
    return rows


def paged_row(bench: Bench, budget: str) -> dict[str, Any]:
    """One budget."""
    args = bench.args
    row: dict[str, Any] = {"model": bench.name, "how": "attach_training", "budget": budget}
    with cleared(bench) as free:
        begin = time.perf_counter()
        model = bench.model()
        optimizer = bench.optimizer(model)
        attached = attach_training(
            model,
            optimizer,
            gpu_memory=budget,
            device=args.device,
            chunk_size=args.chunk_size,
            look_ahead=args.look_ahead,
            emulated=None if bench.cuda else {"granularity": 65536},
            step_in_backward=True,
        )
        row["attach_ms"] = round((time.perf_counter() - begin) * 1e3, 1)
        try:
            row.update(bench.run(lambda number: bench.step(model, optimizer, number)))
            if bench.cuda:
                row["used_bytes"] = free - row.pop("lowest_free_bytes")
                row["within_budget"] = row["used_bytes"] <= parse_size(budget)
            stats = asdict(attached.stats())
            row["stats"] = {k: round(v, 3) if isinstance(v, float) else v for k, v in stats.items()}
        finally:
            attached.detach(keep=False)
            model = optimizer = None
    return row


def judge(row: dict[str, Any], resident: dict[str, Any] | None, link: tuple[float, float]) -> None:
    """The ratio to the resident step and to the ideal, and whether the losses agree."""
    if resident is None:
        return
    row["ratio_to_resident"] = round(row["median_ms"] / resident["median_ms"], 4)
    if "losses" in row:
        pairs = list(zip(row["losses"], resident["losses"], strict=True))
        row["largest_loss_difference"] = max(abs(a - b) for a, b in pairs)
    if "stats" not in row:
        return
    stats = row["stats"]
    room = parse_size(row["budget"]) - row.get("torch_peak_bytes", 0)
    least = least_traffic(
        weights=stats["weight_bytes"],
        trained=stats["trained_bytes"],
        state=stats["state_bytes"],
        room=room,
    )
    row["least_bytes_in"], row["least_bytes_out"] = least
    copies = [size / speed / 1e6 for size, speed in zip(least, link, strict=True) if speed]
    row["ideal_ms"] = round(max([resident["median_ms"], *copies]), 3)
    row["ratio_to_ideal"] = round(row["median_ms"] / row["ideal_ms"], 4)


def show(row: dict[str, Any]) -> None:
    """One line on stdout, as soon as the row is there."""
    parts = [row["model"], row["how"], row.get("budget", "")]
    if "error" in row:
        print(*parts, row["error"], flush=True)
        return
    parts.append(f"{row['median_ms']:.1f} ms")
    for key, text in (("ratio_to_resident", "x resident"), ("ratio_to_ideal", "x ideal")):
        if key in row:
            parts.append(f"{row[key]:.3f} {text}")
    if "used_bytes" in row:
        parts.append(f"used {row['used_bytes'] / GIB:.2f} GiB")
    if "stats" in row:
        stats = row["stats"]
        parts.append(f"{format_bytes(stats['iteration_bytes_in'])} in")
        parts.append(f"{format_bytes(stats['iteration_bytes_out'])} out")
        parts.append(f"blocks {format_bytes(stats['budget'])}")
        parts.append(f"stall {stats['stall_ms']:.1f} of {stats['profiled_ms']:.1f} ms")
    if "largest_loss_difference" in row:
        parts.append(f"loss differs by {row['largest_loss_difference']:.2g}")
    print(*parts, sep=" | ", flush=True)


def main() -> int:
    args = arguments()
    deadline = time.monotonic() + args.limit
    document: dict[str, Any] = {"benchmark": "training_budget", "command": sys.argv, "rows": []}
    link = (0.0, 0.0)
    if args.device == "cuda":
        document.update(provenance())
        link = both_ways()
        document["link_both_ways_gb_per_s"] = link

    def keep(row: dict[str, Any], resident: dict[str, Any] | None) -> None:
        if "error" not in row:
            judge(row, resident, link)
        document["rows"].append(row)
        show(row)
        if args.output:
            write_result(args.output, document)

    for name in args.models.split(","):
        bench = Bench(name, args)
        resident = None
        jobs: list[Callable[[], list[dict[str, Any]]]] = []
        if not args.no_resident:
            jobs.append(lambda bench=bench: resident_rows(bench))
        jobs += [
            lambda bench=bench, budget=budget: [paged_row(bench, budget)]
            for budget in (args.budgets or BUDGETS[name]).split(",")
        ]
        if args.peers:
            jobs.append(lambda bench=bench: [fsdp_offload(bench)])
        for job in jobs:
            if time.monotonic() > deadline:
                print("the limit is reached: rows are left out", flush=True)
                return 0
            try:
                rows = job()
            except Exception as error:  # the other rows are still worth having
                traceback.print_exc()
                keep({"model": name, "how": "failed", "error": repr(error)[:400]}, None)
                continue
            for row in rows:
                if row["how"] == "resident":
                    resident = row
                keep(row, resident)
        if resident is not None:
            print(name, "losses", [round(loss, 4) for loss in resident["losses"]], flush=True)
    times = [row["median_ms"] for row in document["rows"] if "median_ms" in row]
    print(f"{len(times)} rows, median of medians {statistics.median(times or [0]):.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
