# SPDX-License-Identifier: Apache-2.0
"""LayerNorm, feed-forward part, dropout and residual add as one operator with a backward.

    out = x + dropout(act(LayerNorm(x) @ up.T + up_bias) @ down.T + down_bias)

Kept for backward beside x, two floats a row and a seed, in units of x (M x d, d_ff = 4 d):

    recompute 0   the inner tensor before and after the activation   8
    recompute 1   before alone; the activation is taken again        4
    recompute 2   neither; one product more in backward              0

Torch's own layers keep 9.5 with dropout: both, the normalised copy and a mask of bytes. The two
products stay two kernels: a row of d_ff does not fit into one thread block's memory (41 kB at
d = 5,120 in bf16, times the rows of a tile). Without a graph see `layernorm_gemm`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.errors import UsageError

from .activation import activate, activation_backward
from .arguments import as_rows, check_floating, check_like, check_once, check_row, check_shape
from .guard import as_forward, autocast_of, needs_graph, once
from .layernorm_gemm import (
    add_product,
    layer_norm_linear,
    normalise,
    normalise_backward,
    residual_linear,
    through_dropout,
)
from .philox import check_probability, draw_seed
from .product import Folded
from .product_kernel import ACTIVATIONS
from .variants import RECOMPUTE_LEVELS

_NAME = "layer_norm_mlp"


class _FeedForward(torch.autograd.Function):
    """On rows; see the table above for what is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor | None,
        up: Tensor,
        up_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        seed: Tensor | None,
        p: float,
        eps: float,
        activation: str,
        recompute: int,
    ) -> Tensor:
        y, mean, rstd = normalise(x, gamma, beta, eps)
        before = F.linear(y, up, up_bias)
        del y
        after = activate(before, activation)
        ctx.save_for_backward(
            *(x, gamma, beta, up, up_bias, down, seed, mean, rstd),
            before if recompute < 2 else None,
            after if recompute < 1 else None,
        )
        ctx.p, ctx.eps, ctx.activation, ctx.autocast = p, eps, activation, autocast_of(x)
        ctx.has_biases = up_bias is not None, down_bias is not None
        return add_product(after, down, down_bias, x, seed, p)

    @staticmethod
    @once
    @as_forward
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, gamma, beta, up, up_bias, down, seed, mean, rstd, before, after = ctx.saved_tensors
        has_up_bias, has_down_bias = ctx.has_biases
        wanted = ctx.needs_input_grad
        dout = dout.contiguous()
        dinner, ddown_bias = through_dropout(dout, seed, ctx.p, has_down_bias)
        if before is None:
            before = F.linear(normalise(x, gamma, beta, ctx.eps)[0], up, up_bias)
        again = after is None and wanted[5]
        dbefore, dup_bias, made = activation_backward(
            dinner @ down, before, ctx.activation, summed=has_up_bias, again=again
        )
        after = made if again else after
        ddown = dinner.T @ after if wanted[5] and after is not None else None
        del before, after, made, dinner
        dx, dgamma, dbeta, y = normalise_backward(
            dbefore @ up, dout, x, gamma, beta, mean, rstd, eps=ctx.eps, again=wanted[3]
        )
        dup = None if y is None else dbefore.T @ y
        dbeta_or_none = dbeta if beta is not None else None
        return (dx, dgamma, dbeta_or_none, dup, dup_bias, ddown, ddown_bias, *([None] * 5))


def layer_norm_mlp(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    *,
    p: float = 0.0,
    eps: float = 1e-5,
    activation: str = "gelu_tanh",
    recompute: int = 1,
    seed: Tensor | None = None,
    folded: Folded | None = None,
) -> Tensor:
    """``x + dropout(act(LayerNorm(x) @ up.T + up_bias) @ down.T + down_bias)``.

    Args:
        x: (..., d).
        norm_weight: (d,) of the LayerNorm.
        norm_bias: (d,) of the LayerNorm.
        up: (d_ff, d), any strides.
        up_bias: (d_ff,).
        down: (d, d_ff), any strides.
        down_bias: (d,).
        p: Probability to be dropped; 0 also in evaluation.
        eps: Of the LayerNorm.
        activation: "gelu_tanh" or "relu".
        recompute: 0, 1 or 2, as in the table of this module.
        seed: (1,) int64; None draws one where p > 0.
        folded: Where vectors derived from `up` are kept; see `product.Folded`.

    Raises:
        UsageError: If shapes, dtypes or devices do not fit, or an argument is out of range.
    """
    p = check_probability(p)
    if activation not in ACTIVATIONS or activation is None:
        raise UsageError(f"activation {activation!r} is unknown", remedy="gelu_tanh or relu")
    if isinstance(recompute, bool) or recompute not in RECOMPUTE_LEVELS:
        raise UsageError(f"recompute level {recompute!r}", remedy="0, 1 or 2")
    check_once(_check, x, norm_weight, norm_bias, up, up_bias, down, down_bias)
    if p > 0.0 and seed is None:
        seed = draw_seed(x.device)
    parameters = (norm_weight, norm_bias, up, up_bias, down, down_bias)
    if p > 0.0 or needs_graph(x, *parameters):
        seed = seed if p > 0.0 else None
        out = _FeedForward.apply(as_rows(x), *parameters, seed, p, eps, activation, recompute)
        return out.view(x.shape)
    inner = layer_norm_linear(
        x, norm_weight, norm_bias, up, up_bias, eps=eps, activation=activation, folded=folded
    )
    return residual_linear(inner, down, down_bias, x)


def _check(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
) -> None:
    check_floating(_NAME, "x", x)
    norm: dict[str, Any] = {"norm_weight": norm_weight, "norm_bias": norm_bias}
    check_like(_NAME, x, **norm, up=up, up_bias=up_bias, down=down, down_bias=down_bias)
    d = x.shape[-1]
    if up.ndim != 2 or up.shape[1] != d:
        raise UsageError(f"{_NAME}: up has shape {tuple(up.shape)}", remedy=f"(d_ff, {d})")
    check_shape(_NAME, (d, up.shape[0]), down=down)
    check_shape(_NAME, (up.shape[0],), up_bias=up_bias)
    check_shape(_NAME, (d,), **norm, down_bias=down_bias)
    check_row(_NAME, x)
