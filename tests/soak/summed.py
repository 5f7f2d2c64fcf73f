# SPDX-License-Identifier: Apache-2.0
"""A model whose passes tell each byte of its weights, by sums that are exact.

Each row of a weight is summed with odd factors, as integers that wrap around: another value at one
place, two places that have changed and rows or layers that were taken for one another give another
sum. So a pass over all of it is compared by a few kilobytes, and takes little more than reading.
"""

from __future__ import annotations

import torch
from torch import nn

# Bytes on a card besides weights: workspaces of the libraries, and what the driver loads.
ROOM = 320 << 20


class Layer(nn.Module):
    """A square weight of 32-bit words."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, factors: torch.Tensor) -> torch.Tensor:
        return (self.weight * factors).sum(1, dtype=torch.int32)


class Summed:
    """The weights, on the host, and the sums that a pass has to give.

    Attributes:
        bytes: Of the weights.
        room: Bytes that a pass takes besides.
        expected: The sums of the resident model.
    """

    def __init__(self, layers: int, width: int, *, cuda: bool) -> None:
        seeded = torch.Generator().manual_seed(1)
        words = (-(1 << 31), (1 << 31) - 1)
        self._weights = [
            torch.randint(*words, (width, width), dtype=torch.int32, generator=seeded)
            for _ in range(layers)
        ]
        factors = torch.randint(*words, (width,), dtype=torch.int32, generator=seeded) | 1
        self._device = "cuda" if cuda else "cpu"
        self._factors = factors.to(self._device)
        self.bytes = 4 * layers * width * width
        # A product, the sums, and what the driver takes.
        self.room = 2 * (4 * width * width + 4 * layers * width) + (ROOM if cuda else 24 << 10)
        self.expected = torch.cat(
            [Layer(weight.to(self._device))(self._factors).cpu() for weight in self._weights]
        )

    def fresh(self) -> Passes:
        """A model that gets these weights by `load()`."""
        return Passes([Layer(torch.empty_like(each, device="meta")) for each in self._weights])

    def load(self, name: str, destination: torch.Tensor) -> None:
        """As attach() wants it."""
        destination.copy_(self._weights[int(name.partition(".")[0])])

    def sums(self, model: nn.Module) -> torch.Tensor:
        """Those of a pass."""
        return model(self._factors).cpu()


class Passes(nn.ModuleList):
    """All layers, one after the other."""

    def forward(self, factors: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(factors) for layer in self])
