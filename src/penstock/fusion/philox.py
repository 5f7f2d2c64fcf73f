# SPDX-License-Identifier: Apache-2.0
"""Dropout masks as a function of (seed, row, column): Philox 4x32 with 7 rounds, in plain torch.

The reference of `kernels.row.keep_mask`, bit for bit, and what draws masks where no kernel runs.
A mask is never stored: whoever has the seed can draw it again. Source: Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011, section 3.3. Pure functions of tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.errors import UsageError

_ROUNDS = 7
_WORD = 0xFFFFFFFF
_MULTIPLIER_A, _MULTIPLIER_B = 0xD2511F53, 0xCD9E8D57
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85


def check_probability(p: float) -> float:
    """The probability, if it is one.

    Raises:
        UsageError: If it is not at least 0 and below 1.
    """
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0.0 <= p < 1.0:
        raise UsageError(f"dropout probability {p!r}", remedy="0 <= p < 1")
    return float(p)


def threshold(p: float) -> int:
    """A word, read as a signed number, stays if it is not below this: p in steps of 2**-32."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def draw_seed(device: torch.device) -> Tensor:
    """A fresh seed, (1,) int64, from torch's generator of the device.

    Drawn on the device: nothing waits for it, a CUDA graph draws a new one at each replay, and
    checkpointing, which sets the generator back, draws the same one again.
    """
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)


def keep(seed: Tensor, rows: int, columns: int, p: float) -> Tensor:
    """The mask, (rows, columns) of bool: True stays, with probability 1 - p.

    Args:
        seed: (1,) int64.
        rows: M.
        columns: N.
        p: Probability to be dropped.
    """
    drawn = words(seed, rows, columns)
    return torch.where(drawn > 2**31 - 1, drawn - 2**32, drawn) >= threshold(p)


def words(seed: Tensor, rows: int, columns: int) -> Tensor:
    """What is drawn for each element, (rows, columns) int64 from 0 to 2**32 - 1."""
    device = seed.device
    groups = -(-columns // 4)
    c0 = torch.arange(groups, device=device).expand(rows, groups)
    c1 = torch.arange(rows, device=device).unsqueeze(1).expand(rows, groups)
    c2 = c3 = torch.zeros_like(c0)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(_ROUNDS):
        high_a, low_a = _multiply(c0, _MULTIPLIER_A)
        high_b, low_b = _multiply(c2, _MULTIPLIER_B)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + _KEY_A) & _WORD, (k1 + _KEY_B) & _WORD
    return torch.stack((c0, c1, c2, c3), dim=2).view(rows, 4 * groups)[:, :columns]


def _multiply(factor: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """High and low word of a product of 32-bit words, by halves so that int64 never overflows."""
    low, high = (factor & 0xFFFF) * by, (factor >> 16) * by
    carried = high + (low >> 16)
    return (carried >> 16) & _WORD, ((carried & 0xFFFF) << 16) | (low & 0xFFFF)
