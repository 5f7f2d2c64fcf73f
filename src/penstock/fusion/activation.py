# SPDX-License-Identifier: Apache-2.0
"""What stands between a feed-forward part's two products, forward and backward.

Forward is torch's, or an epilogue of the product in front (`product`). Backward gives in one pass
over the inner tensor what its products need: see `kernels.activation`. On a CPU, in float64, and
for a compiler, which fuses them itself, it is torch's own operators.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from . import kernels
from .arguments import Layouts, layout
from .columns import ColumnSums
from .launch import Start, device_programs, operator, seen_by_torch
from .product_kernel import ACTIVATIONS

# 16 elements a thread of four warps, and 256 bytes of a row of two-byte elements side by side. It
# takes 72 registers (ptxas, sm_90), so that a processor has seven programs at a time.
_ROWS, _COLUMNS, _WARPS, _PER_PROCESSOR = 16, 128, 4, 7

# Gradient of what came before, its sum over rows, and the activation again.
Found = tuple[Tensor, Tensor | None, Tensor | None]


def activate(x: Tensor, activation: str | None, *, inplace: bool = False) -> Tensor:
    """One of `ACTIVATIONS`, by torch."""
    if activation == "gelu_tanh":
        if inplace:
            return torch.ops.aten.gelu_(x, approximate="tanh")  # type: ignore[no-any-return]
        return F.gelu(x, approximate="tanh")
    return F.relu(x, inplace=inplace) if activation == "relu" else x


def reference(grad: Tensor, before: Tensor, activation: str, *, summed: bool, again: bool) -> Found:
    """`activation_backward` in torch's own operators."""
    if activation == "gelu_tanh":
        dbefore = torch.ops.aten.gelu_backward(grad, before, approximate="tanh")
    else:
        dbefore = torch.ops.aten.threshold_backward(grad, before, 0)
    return (
        dbefore,
        dbefore.sum(0) if summed else None,
        activate(before, activation) if again else None,
    )


class Backward:
    """`activation_backward` on the kernel, for arguments of one layout."""

    def __init__(self, before: Tensor, activation: str, *, summed: bool, again: bool) -> None:
        from .kernels import activation as kernel

        rows, columns = before.shape
        blocks, tiles = math.ceil(columns / _COLUMNS), math.ceil(rows / _ROWS)
        most = device_programs(before.device, per_processor=_PER_PROCESSOR) // blocks
        # Each takes as many tiles as any other, or a few less: 21 programs for 64 tiles would leave
        # 20 of them idle while one has its fourth.
        programs = math.ceil(tiles / math.ceil(tiles / max(1, most)))
        self._sums = None
        if summed:
            self._sums = ColumnSums(1, programs, columns, dtype=before.dtype, device=before.device)
        self._again = again
        self.start = Start(
            kernel.backward,
            programs * blocks,
            (rows, columns),
            {
                "ACTIVATION": ACTIVATIONS[activation],
                "STORE_AFTER": again,
                "SUM": summed,
                "BLOCK_M": _ROWS,
                "BLOCK_N": _COLUMNS,
            },
            device=before.device,
            warps=_WARPS,
        )

    def __call__(self, grad: Tensor, before: Tensor, *, traced: bool = False) -> Found:
        """See `activation_backward`; what is returned first is `grad`, unless it is traced."""
        dbefore = torch.empty_like(grad) if traced else grad
        after = torch.empty_like(before) if self._again else None
        partials = None if self._sums is None else self._sums.partials()
        start = self.start.traced if traced else self.start
        # What the kernel does not look at is anything.
        start(
            *(grad, before, dbefore),
            before if after is None else after,
            before if partials is None else partials,
        )
        if self._sums is None or partials is None:
            return dbefore, None, after
        return dbefore, self._sums(partials, traced=traced)[0], after


@operator("activation_backward")
def _backward_op(
    grad: Tensor, before: Tensor, activation: str, summed: bool, again: bool
) -> tuple[Tensor, Tensor, Tensor]:
    run = Backward(before, activation, summed=summed, again=again)
    dbefore, dbias, after = run(grad, before, traced=True)
    return (
        dbefore,
        before.new_empty(0) if dbias is None else dbias,
        before.new_empty(0) if after is None else after,
    )


BACKWARDS: Layouts[Backward] = Layouts()


def activation_backward(
    grad: Tensor, before: Tensor, activation: str, *, summed: bool, again: bool
) -> Found:
    """Gradient through an activation, and what else backward needs of the same tensors.

    Args:
        grad: (M, N), of the activation's result; what is returned may be written over it.
        before: (M, N), what the activation took.
        activation: "gelu_tanh" or "relu".
        summed: Whether the column sums of the gradient are wanted: those of a bias.
        again: Whether the activation's result is wanted.

    Returns:
        (M, N) the gradient of `before`; (N,) its sum over rows, or None; (M, N) the result, or
        None.
    """
    on_kernel = (
        kernels.usable(before.device.type)
        and not torch.compiler.is_compiling()
        and grad.dtype == before.dtype != torch.float64
        and before.numel() > 0
        and grad.is_contiguous()
        and before.is_contiguous()
    )
    if not on_kernel:
        return reference(grad, before, activation, summed=summed, again=again)
    if seen_by_torch():
        dbefore, dbias, after = torch.ops.penstock.activation_backward(
            grad, before, activation, summed, again
        )
        return dbefore, dbias if summed else None, after if again else None
    key = (layout(before), activation, summed, again)
    found = BACKWARDS.get(key)
    if found is None:
        made = Backward(before, activation, summed=summed, again=again)
        found = BACKWARDS.keep(key, made)
    return found(grad, before)
