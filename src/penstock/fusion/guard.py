# SPDX-License-Identifier: Apache-2.0
"""What a backward of our own has to see to, which torch sees to for its operators.

Autocast: a product is done in the precision that its forward had, whatever holds where backward
is called. Second derivatives: a kernel leaves no graph, and what forward kept (statistics, a mask)
would count as a constant, so that the gradient of a LayerNorm's gradient was 14 % off, without a
word; they are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Gradients = tuple[Any, ...]
Backward = Callable[..., Gradients]


def autocast_of(tensor: Tensor) -> torch.dtype | None:
    """What autocast has products on the device of a tensor done in; None where it is off."""
    kind = tensor.device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):  # "meta" is an error
        return None
    return torch.get_autocast_dtype(kind)


def needs_graph(*tensors: Tensor | None) -> bool:
    """Whether an op on these has to be differentiable."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def once(backward: Backward) -> Backward:
    """`once_differentiable`, which takes 5 us a call, where somebody asks for a graph of backward.

    Raises:
        RuntimeError: Not here, but when the gradients are differentiated.
    """
    guarded = once_differentiable(backward)

    @functools.wraps(backward)
    def chosen(ctx: Any, *grads: Any) -> Gradients:
        found: Gradients = (guarded if torch.is_grad_enabled() else backward)(ctx, *grads)
        return found

    return chosen


def as_forward(backward: Backward) -> Backward:
    """A backward under the autocast that ``ctx.autocast`` names, which is forward's."""

    @functools.wraps(backward)
    def chosen(ctx: Any, dout: Tensor) -> Gradients:
        if ctx.autocast == autocast_of(dout):
            return backward(ctx, dout)
        on = ctx.autocast is not None
        with torch.autocast(dout.device.type, dtype=ctx.autocast, enabled=on):
            return backward(ctx, dout)

    return chosen
