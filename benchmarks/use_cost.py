# SPDX-License-Identifier: Apache-2.0
"""What a declared use costs the launching thread: 200 modules of 2 MiB that all stay on the card.

    python benchmarks/use_cost.py

In microseconds a module, median and minimum of 30 passes, each given whole before it is waited for:
the modules plain, attached, attached while the library's calls do nothing, and attached with no use
declared at all.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from kit.card import Card
from kit.measure import script_parser
from torch import nn
from torch.nn import functional

import penstock

MODULES, WIDTH, PASSES, KERNELS = 200, 1024, 30, (0, 2, 9)


class Layer(nn.Module):
    """A product, and activations before it: so many kernels."""

    def __init__(self, kernels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.kernels - 1):
            x = functional.relu(x)
        return functional.linear(x, self.weight) if self.kernels else x


def each(card: Card, model: nn.Module, x: torch.Tensor) -> str:
    """Microseconds of the launching thread a module."""
    samples = []
    for _ in range(PASSES):
        card.synchronize()
        began = time.perf_counter()
        model(x)
        samples.append((time.perf_counter() - began) / MODULES * 1e6)
    card.synchronize()
    return f"{sorted(samples)[PASSES // 2]:.1f} ({min(samples):.1f})"


def nothing(*_: Any) -> int:
    return 0


@torch.no_grad()
def main() -> None:
    script_parser(__doc__).parse_args()
    card = Card(small=False)
    x = torch.zeros(8, WIDTH, device=card.device)
    for kernels in KERNELS:
        model = nn.Sequential(*[Layer(kernels) for _ in range(MODULES)]).to(card.device)
        figures = {"plain": each(card, model, x), "plain, again": each(card, model, x)}
        held = penstock.attach(model, gpu_memory="2GiB", device=card.device, chunk_size="4MiB")
        for _ in range(16):
            model(x)
        figures["attached"] = each(card, model, x)
        figures["attached, again"] = each(card, model, x)
        calls = held.pager._begin, held.pager._end
        held.pager._begin = held.pager._end = nothing
        figures["the library's calls left out"] = each(card, model, x)
        held.pager._begin, held.pager._end = calls
        held.hooks.disarm()
        figures["no use declared"] = each(card, model, x)
        held.hooks.arm()
        held.detach(keep=False)
        print(f"{kernels} kernels a module: " + ", ".join(f"{k} {v}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
