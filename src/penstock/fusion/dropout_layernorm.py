# SPDX-License-Identifier: Apache-2.0
"""Dropout, residual add and LayerNorm as one operator with a backward: kernel and reference.

    z = residual + dropout(x + x_bias)        y = LayerNorm(z) * weight + bias

Kept for backward: z, two floats a row and one seed; neither the mask nor x nor y. Gradients of
the biases are column sums that backward has in registers anyway. On a GPU with triton the kernels
of `kernels.row` run, else the reference, which is plain torch; both draw the same mask from the
same seed. float64 is for checking and is always the reference's. `rows` runs them.

Usable under torch.compile, with fake tensors, in CUDA graphs and under activation checkpointing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import rows
from .arguments import as_rows
from .guard import needs_graph, once
from .launch import operator, seen_by_torch
from .philox import check_probability, draw_seed


def dropout_add_layer_norm(
    x: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    *,
    p: float = 0.0,
    x_bias: Tensor | None = None,
    eps: float = 1e-5,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """LayerNorm of a residual stream that a part has just been added to.

    Args:
        x: (..., N), what is dropped out and added; None for the LayerNorm alone.
        residual: (..., N); None for no residual.
        weight: (N,) of the LayerNorm.
        bias: (N,) of the LayerNorm.
        p: Probability to be dropped; 0 also in evaluation.
        x_bias: (N,), the bias of the product that gave x, where it is not in x yet.
        eps: Added to the variance.
        seed: (1,) int64; None draws one.

    Returns:
        y and z, as above, in the dtype of the input.

    Raises:
        UsageError: If shapes, dtypes or devices do not fit, a last dimension is not contiguous,
            a row has more than 64 KiB, or p is no probability.
    """
    return _apply(x, residual, x_bias, weight, bias, seed=seed, p=p, eps=eps)


def dropout_add(
    x: Tensor,
    residual: Tensor | None,
    *,
    p: float,
    x_bias: Tensor | None = None,
    seed: Tensor | None = None,
) -> Tensor:
    """``residual + dropout(x + x_bias)`` without a stored mask; arguments as above."""
    return _apply(x, residual, x_bias, None, None, seed=seed, p=p, eps=0.0)[1]


def _apply(*tensors: Any, seed: Tensor | None, p: float, eps: float) -> tuple[Tensor, Tensor]:
    """Both y and z, of x, residual, x_bias, weight and bias; y is z where there is no weight."""
    x, residual, _, weight, _ = tensors
    p = check_probability(p)
    if x is None:
        p = 0.0
    if p == 0.0:
        seed = None
    elif seed is None:
        assert x is not None
        seed = draw_seed(x.device)
    parts = (*tensors, seed, p, eps)
    graph, seen = needs_graph(*tensors), seen_by_torch()
    if graph and not seen:
        y, z = _Rows.apply(*parts)
    else:
        if seen:  # under the autocast of here, which may be off by the time the operator runs
            rows.check(*tensors)
        y, z, _, _ = forward_rows(*parts, statistics=graph)
    z = residual if x is None else z
    return z if weight is None else y, z


# ---- Operators ---------------------------------------------------------------------------------


def _all(like: Tensor, *found: Tensor | None) -> tuple[Tensor, ...]:
    """What an operator returns, which has to be tensors: empty ones for None."""
    return tuple(like.new_empty(0) if part is None else part for part in found)


@operator("dropout_layernorm")
def _forward_op(
    x: Tensor | None,
    residual: Tensor | None,
    x_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    p: float,
    eps: float,
    # Another kernel: ptxas takes one rounding less where the mean is not stored.
    statistics: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first = rows.check(x, residual, x_bias, weight, bias, mixed=True)
    run = rows.Forward(x, residual, x_bias, weight, bias, seed, p, eps, statistics=statistics)
    found = run(x, residual, x_bias, weight, bias, seed, traced=True)
    y, z, mean, rstd = _all(first, *found)
    return y, z, mean, rstd


@operator("dropout_layernorm_backward")
def _backward_op(
    dy: Tensor | None,
    dz: Tensor | None,
    z: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    seed: Tensor | None,
    p: float,
    x_bias: bool,
    bias: Tensor | None = None,
    normalised: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    parts = (dy, dz, z, weight, mean, rstd, seed)
    run = rows.Backward(*parts, p, x_bias, bias, normalised=normalised)
    dresidual, dx, *sums, y = _all(z, *run(*parts, bias, traced=True))
    # An operator must not return two views of one tensor: the three sums are.
    dweight, dbias, dx_bias = (part.clone() for part in sums)
    return dresidual, dx, dweight, dbias, dx_bias, y


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
    x, residual, x_bias, weight, bias, seed, p, _ = inputs
    _, z, mean, rstd = output
    ctx.set_materialize_grads(False)
    # Without x, z is the residual itself; without a LayerNorm only the seed matters.
    kept = z if x is not None else residual
    ctx.save_for_backward(kept if weight is not None else None, weight, mean, rstd, seed)
    ctx.p, ctx.has = p, (x is not None, residual is not None, x_bias is not None, bias is not None)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    _keep(ctx, inputs[:8], output)


def _gradients(ctx: Any, dy: Tensor | None, dz: Tensor | None, *_: Any) -> tuple[Any, ...]:
    z, weight, mean, rstd, seed = ctx.saved_tensors
    has_x, has_residual, has_x_bias, has_bias = ctx.has
    if weight is None:
        dy = None
    elif dy is None:
        dy = torch.zeros_like(z)
    if not has_x:
        dz = None
    if dy is None and dz is None:
        return (None,) * 8
    dy = None if dy is None else dy.contiguous()
    dz = None if dz is None else dz.contiguous()
    if weight is None and seed is None:  # a sum
        assert dz is not None
        dbias_x = as_rows(dz).sum(0) if has_x_bias else None
        return (dz, dz if has_residual else None, dbias_x, *([None] * 5))
    dresidual, dx, dweight, dbias, dx_bias, _ = backward_rows(
        dy, dz, dz if weight is None else z, weight, mean, rstd, seed, ctx.p, has_x_bias
    )
    summed = dz if weight is None else dresidual
    return (
        (dx if seed is not None else summed) if has_x else None,
        summed if has_residual else None,
        dx_bias if has_x_bias else None,
        dweight if weight is not None else None,
        dbias if has_bias else None,
        *(None, None, None),
    )


def _op_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    return *_gradients(ctx, *grads), None


_forward_op.register_autograd(_op_gradients, setup_context=_setup)


class _Rows(torch.autograd.Function):
    """The same for autograd alone, without the operator's way through the dispatcher.

    With the context in forward: a function with a setup of its own is bound to its arguments'
    names at each call, 16 us.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, Tensor | None]:
        found = rows.forward(*arguments)
        _keep(ctx, arguments, found)
        return found[0], found[1]

    backward = staticmethod(once(_gradients))


# An operator goes through the dispatcher and a check of what it returns: where nothing has to see
# it, these leave it out.


def forward_rows(*arguments: Any, statistics: bool = True) -> tuple[Any, ...]:
    """y, z, mean and rstd of rows: kernel or reference, as an operator if torch has to see it.

    Arguments are those of `rows.Forward`. What does not apply is None or empty.
    """
    run = torch.ops.penstock.dropout_layernorm if seen_by_torch() else rows.forward
    found: tuple[Any, ...] = run(*arguments, statistics=statistics)
    return found


def backward_rows(
    *arguments: Any, bias: Tensor | None = None, normalised: bool = False
) -> tuple[Any, ...]:
    """Gradients as `rows_reference.backward` gives them, and what was normalised, likewise.

    Arguments are those of `rows.Backward`, and are rows.
    """
    if seen_by_torch():
        found: tuple[Any, ...] = torch.ops.penstock.dropout_layernorm_backward(
            *arguments, bias, normalised
        )
        return found
    return rows.backward(*arguments, bias=bias, normalised=normalised)
