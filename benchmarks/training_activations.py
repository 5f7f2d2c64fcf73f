# SPDX-License-Identifier: Apache-2.0
"""Training whose activations do not fit: T5-large, ConvNeXt-L, ViT-L and a U-Net, within budgets.

    python benchmarks/training_activations.py --output benchmarks/results/training/activations.json

fp32 weights, bf16 autocast, no recomputation, random weights and batches. One process: the link's
speed in both directions at once, then for each model plain PyTorch and the budget, from the same
seeds; losses are compared step by step. Each step is waited for. `--keep` adds a row that may let
nothing leave, which is to end out of memory.

The ideal is max(T, over / B_in, over / B_out): T the resident step, B the page-locked copy speed
with both directions at work, and over what the resident step had at its peak, less gradients, which
need not exist together, less the budget: each byte of it goes out and comes in once a step.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from measure import provenance, spread, write_result
from torch import nn
from training_budget import both_ways, cleared

from penstock import attach_training
from penstock.units import GIB, MIB, format_bytes, parse_size

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True)
class Job:
    """One model: how it is made, its loss, the shape of its batches, and the budget."""

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
    "vit_l": Job(vit, _classes, (64, 3, 224, 224), (32, 3, 64, 64), False, "6GiB", "32MiB"),
    "unet": Job(
        lambda tiny: UNet(16 if tiny else 64, 3 if tiny else 5),
        _pixels, (16, 3, 256, 256), (8, 3, 64, 64), False, "6GiB", "24MiB",
    ),
}  # fmt: skip


class Bench:
    """One model and its batches; `cleared` of training_budget takes it."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self.args, self.job = name, args, JOBS[name]
        self.cuda = args.device == "cuda"
        self.device = torch.device("cuda", 0) if self.cuda else torch.device("cpu")
        self.budget = self.job.budget if self.cuda else self.job.tiny_budget
        shape = self.job.shape if self.cuda else self.job.tiny_shape
        random = torch.Generator().manual_seed(1)
        if len(shape) == 2:
            words = 32128 if self.cuda else 512
            batches = [torch.randint(0, words, shape, generator=random) for _ in range(2)]
        else:
            batches = [torch.randn(shape, generator=random) for _ in range(2)]
        self.batches = [batch.to(self.device) for batch in batches]

    def make(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        with self.device:
            model = self.job.make(not self.cuda)
        model.train()
        if self.job.sgd:
            return model, torch.optim.SGD(model.parameters(), lr=1e-3)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Warm-up and timed steps; milliseconds, losses and PyTorch's peak."""
        losses, times = [], []
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        for number in range(self.args.warmups + self.args.steps):
            begin = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = self.job.loss(model, self.batches[number % 2])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if self.cuda:
                torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
        row = {**spread(times[self.args.warmups :]), "first_ms": round(times[0], 1)}
        row["losses"] = losses
        if self.cuda:
            row["torch_peak_bytes"] = torch.cuda.max_memory_allocated()
            row["torch_peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return row


def resident_row(bench: Bench) -> dict[str, Any]:
    """Plain PyTorch."""
    with cleared(bench):
        model, optimizer = bench.make()
        row = {"model": bench.name, "how": "resident", **bench.run(model, optimizer)}
        del model, optimizer
    return row


def paged_row(bench: Bench, activations: str) -> dict[str, Any]:
    """Within the budget."""
    row: dict[str, Any] = {"model": bench.name, "how": activations, "budget": bench.budget}
    with cleared(bench) as free:
        model, optimizer = bench.make()
        attached = attach_training(
            model,
            optimizer,
            gpu_memory=bench.budget,
            device=bench.args.device,
            emulated=None if bench.cuda else {"granularity": 65536},
            step_in_backward=True,
            activations=activations,
        )
        try:
            row.update(bench.run(model, optimizer))
            if bench.cuda:
                row["used_bytes"] = free - torch.cuda.mem_get_info()[0]
                row["within_budget"] = row["used_bytes"] <= parse_size(bench.budget)
            row["stats"] = asdict(attached.stats())
        finally:
            attached.detach(keep=False)
            del model, optimizer
    return row


def judge(row: dict[str, Any], resident: dict[str, Any], link: tuple[float, float]) -> None:
    """The ratio to the resident step and to the ideal, and how far losses are apart."""
    pairs = zip(row["losses"], resident["losses"], strict=True)
    row["largest_loss_difference"] = max(abs(a - b) for a, b in pairs)
    row["ratio_to_resident"] = round(row["median_ms"] / resident["median_ms"], 4)
    if "torch_peak_bytes" not in resident:
        return
    needed = resident["torch_peak_bytes"] - row["stats"]["trained_bytes"]
    over = max(0, needed - parse_size(row["budget"]))
    row["least_bytes"] = over
    copies = [over / speed / 1e6 for speed in link]
    row["ideal_ms"] = round(max(resident["median_ms"], *copies), 3)
    row["ratio_to_ideal"] = round(row["median_ms"] / row["ideal_ms"], 4)


def show(row: dict[str, Any]) -> None:
    """One line on stdout, as soon as the row is there."""
    parts = [row["model"], row["how"], row.get("budget", "")]
    if "error" in row:
        print(*parts, row["error"], sep=" | ", flush=True)
        return
    parts.append(f"{row['median_ms']:.1f} ms, the first {row['first_ms']:.0f}")
    for key, text in (("ratio_to_resident", "x resident"), ("ratio_to_ideal", "x ideal")):
        if key in row:
            parts.append(f"{row[key]:.3f} {text}")
    if "torch_peak_bytes" in row:
        parts.append(f"PyTorch's peak {row['torch_peak_bytes'] / GIB:.2f} GiB")
    if "used_bytes" in row:
        parts.append(f"used {row['used_bytes'] / GIB:.2f} GiB")
    if "stats" in row:
        stats = row["stats"]
        for what, kind in (("pages", "iteration"), ("activations", "activation")):
            out, into = stats[f"{kind}_bytes_out"], stats[f"{kind}_bytes_in"]
            parts.append(f"{what} {format_bytes(out)} out, {format_bytes(into)} in")
        parts.append(f"of {format_bytes(stats['activation_bytes'])} activations")
        parts.append(f"loss differs by {row['largest_loss_difference']:.2g}")
    print(*parts, sep=" | ", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(JOBS))
    parser.add_argument("--device", default="cuda", help="cuda; emulated: small models, no speed")
    parser.add_argument("--warmups", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--limit", type=float, default=140, help="seconds; rows that are left over")
    parser.add_argument("--keep", action="store_true", help="also with activations that stay")
    parser.add_argument("--output", type=Path, default=None)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    deadline = time.monotonic() + args.limit
    document: dict[str, Any] = {"benchmark": "training_activations", "command": sys.argv}
    document["rows"] = []
    link = (0.0, 0.0)
    if args.device == "cuda":
        document.update(provenance())
        link = both_ways(256 * MIB)
        document["link_both_ways_gb_per_s"] = link
    for name in args.models.split(","):
        bench = Bench(name, args)
        resident = None
        for how in ("resident", "auto", *(["keep"] if args.keep else [])):
            if time.monotonic() > deadline:
                print("the limit is reached: rows are left out", flush=True)
                return 1
            try:
                row = resident_row(bench) if how == "resident" else paged_row(bench, how)
                if resident is not None:
                    judge(row, resident, link)
            except Exception as error:  # the other rows are still worth having
                if how != "keep":
                    traceback.print_exc()
                row = {"model": name, "how": how, "error": repr(error)[:300]}
            if how == "resident" and "error" not in row:
                resident = row
            document["rows"].append(row)
            show(row)
            if args.output:
                write_result(args.output, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
