# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts as a ModuleList of them, one token per step. Plain PyTorch.

    python benchmarks/run_frameworks.py --cases "expert modules"

Knows nothing of Penstock. Prints one JSON object: the time of every step, a digest of what they
gave, and what torch had allocated at most.
"""

from __future__ import annotations

import json

import torch
from steps import digest, repeat_bit_for_bit, timed
from torch import nn
from torch.nn import functional as F

LAYERS, EXPERTS, CHOSEN, WIDTH, TOKENS = 12, 24, 4, 2048, 120


class Expert(nn.Module):
    """Two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of one token."""
        return self.down(F.silu(self.up(x)))


class Layer(nn.Module):
    """What every token goes through, and the experts that a router chooses for it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of one token."""
        x = x + self.mix(self.norm(x))
        weights, chosen = self.gate(self.norm(x)).softmax(-1).topk(CHOSEN)
        for weight, expert in zip(weights[0], chosen[0].tolist(), strict=True):
            x = x + weight * self.experts[expert](self.norm(x))
        return x


@torch.no_grad()
def main() -> None:
    repeat_bit_for_bit(warn_only=True)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = nn.Sequential(*(Layer() for _ in range(LAYERS))).eval()
        for name, parameter in model.named_parameters():
            if "gate" in name:
                parameter.normal_(0, 0.05)
        table = torch.randn(512, WIDTH)
        tokens = torch.randint(512, (TOKENS,)).tolist()
    result: dict[str, list[object]] = {"step_ms": [], "digests": []}
    for token in tokens:
        with timed(result["step_ms"], torch.cuda.synchronize):
            made = model(table[token : token + 1])
        result["digests"].append(digest(made))
    print(json.dumps({"need_bytes": torch.cuda.max_memory_allocated(), **result}))


if __name__ == "__main__":
    main()
