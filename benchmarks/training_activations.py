# SPDX-License-Identifier: Apache-2.0
"""Training whose activations do not fit: T5-large, ConvNeXt-L, ViT-L and a U-Net, within budgets.

    python benchmarks/training_activations.py --output benchmarks/results/training/activations.json

fp32 weights, bf16 autocast, no recomputation, random weights and batches. One process: the link's
speed in both directions at once, then for each model plain PyTorch, the same again, and the budget,
all from the same seeds; losses are compared step by step, and "again" says how far the kernels
repeat themselves. Each step is waited for. Memory is the driver's own figure by NVML, every 5 ms.
`--keep` adds a row that may let nothing leave, which is to end out of memory.

The ideal is max(T, over / B_in, over / B_out): T the resident step, B the page-locked copy speed
with both directions at work, and over what is alive in the resident run between forward and
backward, less the budget. All of that backward or the update needs, so what is beyond the budget
then has gone out before and comes in after, in each step. It is a lower bound: what operators need
beside it is not taken off the budget.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from budget_card import Card, PeakWatch, spread
from measure import command_line, provenance, write_result
from torch import nn
from training_budget import both_ways, cleared

from penstock import attach_training
from penstock.bound import shortest_ms
from penstock.units import GIB, MIB, format_bytes, parse_size

# Of stats(), after each step: what settles, and what a slow step did.
MOVED = (
    "iteration_bytes_in", "iteration_bytes_out", "activation_bytes_in", "activation_bytes_out",
    "activation_host_bytes", "plans",
)  # fmt: skip

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True)
class Job:
    """One model: how it is made, its loss, the shape of its batches, and the budget.

    A budget in per cent is of what the resident run has at its peak.
    """

    make: Callable[[bool], nn.Module]
    loss: Loss
    shape: tuple[int, ...]
    tiny_shape: tuple[int, ...]
    sgd: bool
    budget: str
    tiny_budget: str


def t5(tiny: bool) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    large = {"d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16}
    small = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    config = T5Config(
        **(small if tiny else large),
        vocab_size=512 if tiny else 32128,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def convnext(tiny: bool) -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = [48, 96] if tiny else [192, 384, 768, 1536]
    config = ConvNextConfig(
        depths=[2, 2] if tiny else [3, 3, 27, 3],
        hidden_sizes=sizes,
        num_stages=len(sizes),
        num_labels=10 if tiny else 1000,
    )
    return ConvNextForImageClassification(config)


def vit(tiny: bool) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    small = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = ViTConfig(
        **(small if tiny else large),
        intermediate_size=384 if tiny else 4096,
        image_size=64 if tiny else 224,
        patch_size=8 if tiny else 16,
        num_labels=10 if tiny else 1000,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config)


class UNet(nn.Module):
    """Five sizes with two convolutions each way; what is made first is used last in forward too."""

    def __init__(self, width: int, sizes: int) -> None:
        super().__init__()
        widths = [width << n for n in range(sizes)]
        pairs = list(pairwise(widths))
        self.enter = self._two(3, width)
        self.down = nn.ModuleList(self._two(a, b) for a, b in pairs)
        self.wide = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(self._two(2 * a, a) for a, _ in pairs)
        self.leave = nn.Conv2d(width, 3, 1)

    def _two(self, before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(8, after),
            nn.SiLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.GroupNorm(8, after),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        kept = []
        for block in self.down:
            kept.append(x)
            x = block(nn.functional.max_pool2d(x, 2))
        for wide, up in zip(reversed(self.wide), reversed(self.up), strict=True):
            x = up(torch.cat([kept.pop(), wide(x)], 1))
        return self.leave(x)


def _language(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


def _classes(model: Any, images: torch.Tensor) -> torch.Tensor:
    kinds = torch.arange(len(images), device=images.device) % 10
    return nn.functional.cross_entropy(model(images).logits, kinds)


def _pixels(model: Any, images: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(images), images)


JOBS = {
    "t5_large_8x512": Job(t5, _language, (8, 512), (8, 128), False, "8GiB", "40MiB"),
    "convnext_l_sgd": Job(
        convnext, _classes, (64, 3, 224, 224), (16, 3, 128, 128), True, "2GiB", "40MiB"
    ),
    "vit_l": Job(vit, _classes, (64, 3, 224, 224), (32, 3, 64, 64), False, "50%", "32MiB"),
    "unet": Job(
        lambda tiny: UNet(16 if tiny else 64, 3 if tiny else 5),
        _pixels, (16, 3, 256, 256), (8, 3, 64, 64), False, "50%", "24MiB",
    ),
}  # fmt: skip


class OutOfTime(Exception):
    """The time that the command line gave is over."""


class Bench:
    """One model and its batches; `cleared` of training_budget takes it."""

    def __init__(self, name: str, args: argparse.Namespace, card: Card, deadline: float) -> None:
        self.name, self.args, self.card, self.job = name, args, card, JOBS[name]
        self.cuda, self.device = not card.small, card.device
        self._deadline = deadline
        shape = self.job.shape if self.cuda else self.job.tiny_shape
        random = torch.Generator().manual_seed(1)
        if len(shape) == 2:
            words = 32128 if self.cuda else 512
            batches = [torch.randint(0, words, shape, generator=random) for _ in range(2)]
        else:
            batches = [torch.randn(shape, generator=random) for _ in range(2)]
        self.batches = [batch.to(self.device) for batch in batches]

    def budget(self, resident: dict[str, Any] | None) -> int:
        """Bytes."""
        text = self.job.budget if self.cuda else self.job.tiny_budget
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
        if self.job.sgd:
            return model, torch.optim.SGD(model.parameters(), lr=1e-3)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, after: Callable[[], None]
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
            if time.monotonic() > self._deadline:
                raise OutOfTime(f"{number} steps were made when the time was over")
            begin = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16):
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


def resident_row(bench: Bench, how: str) -> dict[str, Any]:
    """Plain PyTorch."""
    with cleared(bench), PeakWatch(bench.card) as watch:
        model, optimizer = bench.make()
        row = {"model": bench.name, "how": how, **bench.run(model, optimizer, lambda: None)}
        if bench.cuda:
            row["used_bytes"] = watch.peak() + watch.kept
        del model, optimizer
    return row


def paged_row(bench: Bench, how: str, budget: int) -> dict[str, Any]:
    """Within the budget."""
    row: dict[str, Any] = {"model": bench.name, "how": how, "budget_bytes": budget}
    moved: list[dict[str, int]] = []

    def after() -> None:
        stats = asdict(attached.stats())
        moved.append({name: stats[name] for name in MOVED})

    with cleared(bench), PeakWatch(bench.card) as watch:
        model, optimizer = bench.make()
        attached = attach_training(
            model,
            optimizer,
            gpu_memory=budget,
            device=str(bench.device) if bench.cuda else "emulated",
            emulated=None if bench.cuda else {"granularity": 65536},
            step_in_backward=True,
            activations=how,
        )
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


def judge(row: dict[str, Any], resident: dict[str, Any], link: tuple[float, float]) -> None:
    """The ratio to the resident step and to the ideal, and how far losses are apart."""
    pairs = zip(row["losses"], resident["losses"], strict=True)
    row["largest_loss_difference"] = max(abs(a - b) for a, b in pairs)
    row["ratio_to_resident"] = round(row["median_ms"] / resident["median_ms"], 4)
    row["p99_to_median"] = round(row["p99_ms"] / row["median_ms"], 3)
    if "alive_bytes" not in resident or "budget_bytes" not in row:
        return
    over = max(0, resident["alive_bytes"] - row["budget_bytes"])
    row["least_bytes"] = over
    row["ideal_ms"] = round(shortest_ms(resident["median_ms"], *((over, at) for at in link)), 3)
    row["ratio_to_ideal"] = round(row["median_ms"] / row["ideal_ms"], 4)


def show(row: dict[str, Any]) -> None:
    """One line on stdout, as soon as the row is there."""
    parts = [row["model"], row["how"]]
    if "budget_bytes" in row:
        parts.append(format_bytes(row["budget_bytes"]))
    if "error" in row:
        print(*parts, row["error"], sep=" | ", flush=True)
        return
    first = row["warmups_ms"][0] if row["warmups_ms"] else 0.0
    parts.append(f"{row['median_ms']:.1f} ms, p99 {row['p99_ms']:.1f}, the first {first:.0f}")
    for key, text in (("ratio_to_resident", "x resident"), ("ratio_to_ideal", "x ideal")):
        if key in row:
            parts.append(f"{row[key]:.3f} {text}")
    for key, text in (("torch_peak_bytes", "PyTorch's peak"), ("used_bytes", "used")):
        if key in row:
            parts.append(f"{text} {row[key] / GIB:.2f} GiB")
    if not row.get("within_budget", True):
        parts.append("BEYOND THE BUDGET")
    if "stats" in row:
        stats = row["stats"]
        for what, kind in (("pages", "iteration"), ("activations", "activation")):
            out, into = stats[f"{kind}_bytes_out"], stats[f"{kind}_bytes_in"]
            parts.append(f"{what} {format_bytes(out)} out, {format_bytes(into)} in")
        parts.append(f"of {format_bytes(stats['activation_bytes'])} activations")
        if "least_bytes" in row:
            parts.append(f"at least {format_bytes(row['least_bytes'])}")
    if "largest_loss_difference" in row:
        parts.append(f"loss differs by {row['largest_loss_difference']:.2g}")
    print(*parts, sep=" | ", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(JOBS))
    parser.add_argument("--device", default="cuda", help="cuda; emulated: small models, no speed")
    parser.add_argument("--warmups", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--limit", type=float, default=140, help="seconds; rows that are left over")
    parser.add_argument("--keep", action="store_true", help="also with activations that stay")
    parser.add_argument("--output", type=Path, default=None)
    return parser.parse_args()


def rows_of(bench: Bench, link: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """One model's, each as soon as it is there; one that fails has an error."""
    resident: dict[str, Any] | None = None
    for how in ("resident", "again", "auto", *(["keep"] if bench.args.keep else [])):
        row: dict[str, Any] = {"model": bench.name, "how": how}
        try:
            if how in ("resident", "again"):
                row = resident_row(bench, how)
                resident = resident or row
            else:
                row = paged_row(bench, how, bench.budget(resident))
            if resident is not None and row is not resident:
                judge(row, resident, link)
        except OutOfTime as error:
            row["error"] = str(error)
        except Exception as error:  # the other rows are still worth having
            if how != "keep":
                traceback.print_exc()
            row["error"] = repr(error)[:300]
        yield row


def main() -> int:
    args = arguments()
    deadline = time.monotonic() + args.limit
    document: dict[str, Any] = {"benchmark": "training_activations", "command": command_line()}
    document["rows"] = []
    link = (0.0, 0.0)
    card = Card(small=args.device != "cuda")
    if not card.small:
        document.update(provenance())
        link = both_ways(256 * MIB)
        document["link_both_ways_gb_per_s"] = link
        print(f"link, both ways at once: {link[0]:.1f} GB/s in, {link[1]:.1f} out", flush=True)
    for name in args.models.split(","):
        begin = time.monotonic()
        for row in rows_of(Bench(name, args, card, deadline), link):
            document["rows"].append(row)
            show(row)
            if args.output:
                write_result(args.output, document)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    return int(time.monotonic() > deadline)


if __name__ == "__main__":
    sys.exit(main())
