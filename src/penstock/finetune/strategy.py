# SPDX-License-Identifier: Apache-2.0
"""What a fine-tune does to need less memory, in the letters of GMLake's benchmark.

L trains low-rank adapters (LoRA), R recomputes activations in the backward pass, O offloads what
does not fit to the host; N is none of them. Pure Python.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import UsageError

KNOWN = "N, R, L, LR, RO, LRO"
_LETTERS = "LRO"


@dataclass(frozen=True)
class Strategy:
    """Which of the three are in use.

    Attributes:
        lora: Adapters are trained, the model's own weights are frozen.
        recompute: Activations inside a layer are computed again in the backward pass.
        offload: What does not fit waits in host memory.
    """

    lora: bool = False
    recompute: bool = False
    offload: bool = False

    @property
    def name(self) -> str:
        """The letters in their usual order; N for none."""
        used = (self.lora, self.recompute, self.offload)
        return "".join(letter for letter, on in zip(_LETTERS, used, strict=True) if on) or "N"


def parse_strategy(text: str) -> Strategy:
    """The strategy that the letters stand for, in any order and case.

    Raises:
        UsageError: If there are other letters, or one twice.
    """
    letters = text.strip().upper()
    if letters == "N":
        return Strategy()
    if not letters or set(letters) - set(_LETTERS) or len(set(letters)) < len(letters):
        raise UsageError(f"--strategy '{text}' is unknown", remedy=KNOWN)
    return Strategy("L" in letters, "R" in letters, "O" in letters)
