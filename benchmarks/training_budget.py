# SPDX-License-Identifier: Apache-2.0
"""Training beyond the budget: losses, times and memory of what people train, in several budgets.

    python benchmarks/training_budget.py --output benchmarks/results/training/activations.json
    python benchmarks/training_budget.py --models gpt2_xl --peers --output h200-xl.json

Random weights and batches of the models in training_models.py: the Llamas are bf16, the others have
fp32 weights and bf16 autocast; those and GPT-2's shapes recompute their layers, the rest keeps all
activations. One process: the link's speed in both directions at once, then for each model plain
PyTorch, the same again, and the budgets, all from the same seeds; losses are compared step by step,
and "again" says how far the kernels repeat themselves. Each step is waited for. Memory is the
driver's own figure by NVML, every 5 ms. `--keep` adds a row that may let nothing leave, which is to
end out of memory, and `--peers` one of FSDP2 with CPUOffloadPolicy.

The ideal is max(T, over / B_in, over / B_out): T the resident step, B the page-locked copy speed
with both directions at work, and over what is alive in the resident run between forward and
backward, less the budget. All of that backward or the update needs, so what is beyond the budget
then has gone out before and comes in after, in each step. It is a lower bound: what operators need
beside it is not taken off the budget. Where layers are recomputed, over is in each direction what a
step must move of weights and state that do not stay, in the room that tensors leave at their peak.

The ideal in turn is a tighter bound: backward begins when forward is over. What is over then comes
in behind that moment, beside backward's own time; and what of it is neither weights nor state has
gone out before, beside forward's.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from budget_card import Card, PeakWatch
from measure import alone, both_ways, output_parser, spread
from record import OutOfTime, Record
from torch import nn
from training_models import JOBS

from penstock import attach_training
from penstock.bound import shortest_ms
from penstock.paging.training.stats import least_traffic
from penstock.units import MIB, parse_size

# Of stats(), after each step: what settles, and what a slow step did.
MOVED = (
    "iteration_bytes_in", "iteration_bytes_out", "activation_bytes_in", "activation_bytes_out",
    "activation_host_bytes", "plans",
)  # fmt: skip


class Bench:
    """One model and its batches."""

    def __init__(self, name: str, args: argparse.Namespace, card: Card, record: Record) -> None:
        self.name, self.args, self.card, self.job = name, args, card, JOBS[name]
        self.cuda, self.device = not card.small, card.device
        self._record = record
        batches = self.job.batches(tiny=not self.cuda)
        self.batches = [batch.to(self.device) for batch in batches]
        budgets = self.job.budgets if self.cuda else self.job.tiny_budgets
        self.budgets = args.budgets.split(",") if args.budgets else budgets

    def budget(self, text: str, resident: dict[str, Any] | None) -> int:
        """Bytes."""
        if not text.endswith("%"):
            return parse_size(text)
        if resident is None:
            raise ValueError(f"{text} of what the resident run needs, which is not known")
        return int(resident["torch_peak_bytes"] * float(text[:-1]) / 100) // MIB * MIB

    def make(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        with self.device:
            model = self.job.make(not self.cuda)
        model.train()
        return model, self.optimizer(model)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.job.optimizer([p for p in model.parameters() if p.requires_grad])

    @contextmanager
    def watched(self) -> Iterator[PeakWatch]:
        """The device's memory, with nothing left of the last row, nor of this one."""
        self.card.clear()
        with PeakWatch(self.card) as watch:
            yield watch
        self.card.clear()

    def run(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        after: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Warm-up and timed steps; milliseconds, losses, PyTorch's peak and what is alive.

        Args:
            model: It.
            optimizer: Its.
            after: Called after each step, beside the time.
        """
        losses, times, alive = [], [], 0
        self.card.forget_peak()
        for number in range(self.args.warmups + self.args.steps):
            self._record.check_time()
            begin = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.job.half):
                loss = self.job.loss(model, self.batches[number % 2])
            if self.cuda:
                alive = max(alive, torch.cuda.memory_allocated())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            self.card.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
            after()
        row = {**spread(times[self.args.warmups :]), "losses": losses}
        row["warmups_ms"] = [round(each, 1) for each in times[: self.args.warmups]]
        if self.cuda:
            row["torch_peak_bytes"] = self.card.peak()
            row["torch_peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
            row["alive_bytes"] = alive
        return row

    def forward_ms(self, model: nn.Module) -> float:
        """The median time of forward alone; what backward would need is thrown away."""
        times = []
        for number in range(self.args.warmups + self.args.steps):
            begin = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.job.half):
                self.job.loss(model, self.batches[number % 2])
            self.card.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
        return float(spread(times[self.args.warmups :])["median_ms"])


def resident_row(bench: Bench, how: str) -> dict[str, Any]:
    """Plain PyTorch."""
    with bench.watched() as watch:
        model, optimizer = bench.make()
        row = {"model": bench.name, "how": how, **bench.run(model, optimizer)}
        row["forward_ms"] = bench.forward_ms(model)
        if bench.cuda:
            row["used_bytes"] = watch.peak() + watch.kept
        del model, optimizer
    return row


def paged_row(bench: Bench, how: str, text: str, budget: int) -> dict[str, Any]:
    """Within the budget, which is told in words too."""
    row: dict[str, Any] = {"model": bench.name, "how": how, "budget": text, "budget_bytes": budget}
    moved: list[dict[str, int]] = []

    def after() -> None:
        stats = asdict(attached.stats())
        moved.append({name: stats[name] for name in MOVED})

    with bench.watched() as watch:
        model, optimizer = bench.make()
        attached = attach_training(
            model,
            optimizer,
            gpu_memory=budget,
            device=str(bench.device) if bench.cuda else "emulated",
            chunk_size=bench.args.chunk_size,
            look_ahead=bench.args.look_ahead,
            emulated=None if bench.cuda else {"granularity": 65536},
            step_in_backward=True,
            activations=how,
        )
        watch.forget()  # the model lay on the card before
        try:
            row.update(bench.run(model, optimizer, after))
            row["stats"], row["moved"] = asdict(attached.stats()), moved
            if bench.cuda:
                row["used_bytes"] = watch.peak() + watch.kept
                row["within_budget"] = row["used_bytes"] <= budget
        finally:
            attached.detach(keep=False)
            del model, optimizer
    return row


def fsdp_offload(bench: Bench) -> dict[str, Any]:
    """The step of FSDP2 with CPUOffloadPolicy on one GPU, of a GPT-2.

    Parameters, gradients and state live on the host, where AdamW (fused) runs; layers are gathered
    for their forward and backward.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    alone()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if bench.cuda else "gloo", rank=0, world_size=1)
    mesh = init_device_mesh(bench.device.type, (1,))
    model: Any = bench.make()[0].cpu()
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=bench.cuda),
    }
    for layer in model.transformer.h:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    with bench.watched() as watch:
        row = bench.run(model, bench.optimizer(model))
    if bench.cuda:
        row["used_bytes"] = watch.peak() + watch.kept
    dist.destroy_process_group()
    return row


def least(bench: Bench, row: dict[str, Any], resident: dict[str, Any]) -> tuple[int, int]:
    """Bytes that a step must move, in and out."""
    if not bench.job.recomputes:
        over = max(0, resident["alive_bytes"] - row["budget_bytes"])
        return over, over
    return least_traffic(
        weights=row["stats"]["weight_bytes"],
        trained=row["stats"]["trained_bytes"],
        state=row["stats"]["state_bytes"],
        room=row["budget_bytes"] - row["torch_peak_bytes"],
    )


def judge(
    bench: Bench, row: dict[str, Any], resident: dict[str, Any], link: tuple[float, float]
) -> None:
    """The ratio to the resident step and to the ideal, and how far losses are apart."""
    pairs = zip(row["losses"], resident["losses"], strict=True)
    row["largest_loss_difference"] = max(abs(a - b) for a, b in pairs)
    row["ratio_to_resident"] = round(row["median_ms"] / resident["median_ms"], 4)
    row["p99_to_median"] = round(row["p99_ms"] / row["median_ms"], 3)
    if "alive_bytes" not in resident or "budget_bytes" not in row:
        return
    row["least_bytes"] = into, out = least(bench, row, resident)
    copies = (into, link[0]), (out, link[1])
    row["ideal_ms"] = round(shortest_ms(resident["median_ms"], *copies), 3)
    row["ratio_to_ideal"] = round(row["median_ms"] / row["ideal_ms"], 4)
    over = max(0, resident["alive_bytes"] - row["budget_bytes"])
    kept = row["stats"]["state_bytes"] + row["stats"]["weight_bytes"]
    forward = shortest_ms(resident["forward_ms"], (max(0, over - kept), link[1]))
    backward = shortest_ms(resident["median_ms"] - resident["forward_ms"], (over, link[0]))
    row["ideal_in_turn_ms"] = round(max(row["ideal_ms"], forward + backward), 3)
    row["ratio_to_ideal_in_turn"] = round(row["median_ms"] / row["ideal_in_turn_ms"], 4)


def arguments() -> argparse.Namespace:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--models", default=",".join(JOBS))
    parser.add_argument("--budgets", default=None, help="comma-separated; default by model")
    parser.add_argument("--device", default="cuda", help="cuda; emulated: small models, no speed")
    parser.add_argument("--warmups", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--limit", type=float, default=540, help="seconds; rows that are left over")
    parser.add_argument("--chunk-size", default=None)
    parser.add_argument("--look-ahead", default=None)
    parser.add_argument("--no-resident", action="store_true", help="without the resident rows")
    parser.add_argument(
        "--peers", action="store_true", help="GPT-2 by FSDP2's CPUOffloadPolicy too"
    )
    parser.add_argument("--keep", action="store_true", help="also with activations that stay")
    return parser.parse_args()


def rows_of(bench: Bench, link: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """One model's, each as soon as it is there; one that fails has an error."""
    resident: dict[str, Any] | None = None

    def paged(how: str, text: str) -> dict[str, Any]:
        return paged_row(bench, how, text, bench.budget(text, resident))

    ways = ["auto", *(["keep"] if bench.args.keep else [])]
    plain = [] if bench.args.no_resident else ["resident", "again"]
    rows = [(how, partial(resident_row, bench, how)) for how in plain]
    rows += [(how, partial(paged, how, text)) for text in bench.budgets for how in ways]
    if bench.args.peers and bench.name.startswith("gpt"):
        rows.append(("FSDP2 CPUOffloadPolicy", partial(fsdp_offload, bench)))
    for how, measure in rows:
        row: dict[str, Any] = {"model": bench.name, "how": how}
        try:
            row |= measure()
            if how in plain:
                resident = resident or row
            if resident is not None and row is not resident:
                judge(bench, row, resident, link)
        except OutOfTime as error:
            row["error"] = str(error)
        except Exception as error:  # the other rows are still worth having
            if how != "keep":
                traceback.print_exc()
            row["error"] = repr(error)[:300]
        yield row


def main() -> int:
    args = arguments()
    link = (0.0, 0.0)
    card = Card(small=args.device != "cuda")
    record = Record(args.output, args.limit, card=not card.small, benchmark="training_budget")
    if not card.small:
        link = both_ways()
        record.document["link_both_ways_gb_per_s"] = link
        print(f"link, both ways at once: {link[0]:.1f} GB/s in, {link[1]:.1f} out", flush=True)
    for name in args.models.split(","):
        for row in rows_of(Bench(name, args, card, record), link):
            record.add(row)
    return int(record.left < 0)


if __name__ == "__main__":
    sys.exit(main())
