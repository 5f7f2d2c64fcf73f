# SPDX-License-Identifier: Apache-2.0
"""Sums over the rows of a tensor, as kernels leave them: each program's own, in float32.

A kernel that goes through rows has its sums in registers at the end, and no program knows those of
the others. Invariant: the order of additions is fixed, so that the same rows give the same bits.

In two bytes torch's sum and conversion are two kernels, of which one is made here. In float32 it
is one already, and adds in an order that loses less: over 63 rows of a cosine, which nearly cancel,
this kernel was 6.9e-6 off where torch's LayerNorm is 2.7e-6 (whole-h200-x2-5.json).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import Start

# Of a program: enough loads on their way at a time that few rounds wait for memory.
_ELEMENTS, _WARPS = 4096, 8
_MOST_PARTS, _FEWEST_COLUMNS, _MOST_COLUMNS = 256, 16, 64


class ColumnSums:
    """Room for the sums of some programs, and what adds them up.

    Args:
        vectors: S, how many sums a row gives.
        programs: P, that have some each.
        columns: N.
        dtype: Of the result.
        device: A GPU, or any where kernels are interpreted.
    """

    def __init__(
        self, vectors: int, programs: int, columns: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._partials, self._dtype, self._device = (vectors, programs, columns), dtype, device
        self.start: Start | None = None
        if dtype == torch.float32:
            return
        from .kernels import columns as kernel

        parts = min(_MOST_PARTS, 1 << (programs - 1).bit_length())
        block = max(_FEWEST_COLUMNS, min(_MOST_COLUMNS, _ELEMENTS // parts))
        self.start = Start(
            kernel.sums,
            vectors * -(-columns // block),
            (programs, columns),
            {"BLOCK_P": parts, "BLOCK_N": block},
            device=device,
            warps=_WARPS,
        )

    def partials(self) -> Tensor:
        """(S, P, N) float32 for the programs to write to, every element of it."""
        return torch.empty(self._partials, dtype=torch.float32, device=self._device)

    def __call__(self, partials: Tensor, *, traced: bool = False) -> tuple[Tensor, ...]:
        """The S sums, (N,) each, as views of one tensor; `traced` as in `Start`."""
        if self.start is None:
            return partials.sum(1).unbind(0)
        vectors, _, columns = self._partials
        found = torch.empty((vectors, columns), dtype=self._dtype, device=self._device)
        (self.start.traced if traced else self.start)(partials, found)
        return found.unbind(0)
