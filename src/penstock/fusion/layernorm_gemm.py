# SPDX-License-Identifier: Apache-2.0
"""A linear layer with the LayerNorm before it and the activation or residual behind it.

Without a graph it is a `product.Product`, done in the fastest way known. With a graph it is an
operator that keeps its input and two floats a row, and takes the LayerNorm again in backward.
Functions for anyone; they refuse what does not fit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.errors import UsageError

from .activation import activate
from .arguments import as_rows, check_floating, check_like, check_once, check_row, check_shape
from .dropout_layernorm import backward_rows, forward_rows
from .guard import as_forward, autocast_of, needs_graph, once
from .product import Folded, compute
from .product_kernel import ACTIVATIONS

IMPLEMENTATIONS = ("auto", "torch", "triton")
_NAME = "layer_norm_linear"


# ---- With a graph ------------------------------------------------------------------------------


class _LayerNormLinear(torch.autograd.Function):
    """Keeps x and two floats a row; y = LayerNorm(x) is made again in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        y, mean, rstd = normalise(x, gamma, beta, eps)
        ctx.save_for_backward(x, gamma, beta, weight, mean, rstd)
        ctx.has_bias, ctx.eps, ctx.autocast = bias is not None, eps, autocast_of(x)
        return F.linear(y, weight, bias)

    @staticmethod
    @once
    @as_forward
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, gamma, beta, weight, mean, rstd = ctx.saved_tensors
        dout = dout.contiguous()
        wanted = ctx.needs_input_grad[3]
        dx, dgamma, dbeta, y = normalise_backward(
            dout @ weight, None, x, gamma, beta, mean, rstd, eps=ctx.eps, again=wanted
        )
        dweight = None if y is None else dout.T @ y
        dbias = dout.sum(0) if ctx.has_bias else None
        return dx, dgamma, dbeta if beta is not None else None, dweight, dbias, None


def normalise(
    x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm of rows, with its means and its 1 / sigma; called again it gives the same bits.

    On a GPU it is torch's own, which costs the host less; on a CPU that rounds the statistics.
    """
    if x.is_cuda:
        return torch.native_layer_norm(x, x.shape[-1:], gamma, beta, eps)
    y, _, mean, rstd = forward_rows(None, x, None, gamma, beta, None, 0.0, eps)
    return y, mean, rstd


def normalise_backward(
    dy: Tensor,
    dz: Tensor | None,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    again: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients through `normalise` of x, gamma and beta, and with `again` its result.

    One kernel gives both where a row is in registers: taken by itself the result would cost a
    launch and x once more.
    """
    parts = (dy, dz, x, gamma, mean, rstd, None, 0.0, False)
    dx, _, dgamma, dbeta, _, y = backward_rows(*parts, bias=beta, normalised=again)
    return dx, dgamma, dbeta, y if again else None


def add_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, seed: Tensor | None, p: float
) -> Tensor:
    """``residual + dropout(x @ weight.T + bias)`` of rows; without a seed nothing is dropped."""
    if seed is None:
        return compute(None, x, None, None, weight, bias, residual)
    product = F.linear(x, weight)
    return forward_rows(product, residual, bias, None, None, seed, p, 0.0)[1]


def through_dropout(
    dout: Tensor, seed: Tensor | None, p: float, has_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the product in `add_product` and of its bias."""
    if seed is None:
        return dout, dout.sum(0) if has_bias else None
    _, dx, _, _, dbias, _ = backward_rows(None, dout, dout, *[None] * 3, seed, p, has_bias)
    return dx, dbias if has_bias else None


class _ResidualLinear(torch.autograd.Function):
    """``residual + x @ W.T + bias``; keeps x, and not the sum's parts."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.autocast = bias is not None, autocast_of(x)
        return compute(None, x, None, None, weight, bias, residual)

    @staticmethod
    @as_forward
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        dbias = dout.sum(0) if ctx.has_bias else None
        dweight = dout.T @ x if ctx.needs_input_grad[1] else None
        return dout @ weight, dweight, dbias, dout


# ---- Functions ---------------------------------------------------------------------------------


def layer_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    *,
    eps: float = 1e-5,
    activation: str | None = None,
    implementation: str = "auto",
    folded: Folded | None = None,
) -> Tensor:
    """``act(LayerNorm(x) @ weight.T + bias)``.

    Args:
        x: (..., K).
        norm_weight: (K,) of the LayerNorm.
        norm_bias: (K,) of the LayerNorm.
        weight: (N, K); any strides, so that a transposed matrix needs no copy.
        bias: (N,).
        eps: Of the LayerNorm.
        activation: None, "gelu_tanh" or "relu".
        implementation: "auto" takes what was measured, "torch" the library, "triton" the kernel.
        folded: Where the vectors derived from the weights are kept; None keeps them by weight.

    Returns:
        (..., N) in the dtype of x.

    Raises:
        UsageError: If shapes, dtypes or devices do not fit, or a name is unknown.
        EnvironmentProblem: If "triton" is asked for and is not installed.
    """
    _check_names(activation, implementation)
    parts = (x, norm_weight, norm_bias, weight, bias)
    if needs_graph(*parts):
        check_once(_check, *parts)
        out = _LayerNormLinear.apply(as_rows(x), norm_weight, norm_bias, weight, bias, eps)
        return activate(out, activation).view(*x.shape[:-1], weight.shape[0])
    return compute(
        *(_check, *parts, None, activation, eps), folded=folded, implementation=implementation
    )


def residual_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    *,
    implementation: str = "auto",
) -> Tensor:
    """``residual + x @ weight.T + bias``, the residual entering the product as its C.

    Args:
        x: (..., K).
        weight: (N, K), any strides.
        bias: (N,).
        residual: (..., N).
        implementation: As for `layer_norm_linear`.

    Raises:
        UsageError: If shapes, dtypes or devices do not fit, or a name is unknown.
        EnvironmentProblem: If "triton" is asked for and is not installed.
    """
    _check_names(None, implementation)
    parts = (x, None, None, weight, bias, residual)
    if needs_graph(*parts):
        check_once(_check_residual, *parts)
        out = _ResidualLinear.apply(as_rows(x), weight, bias, as_rows(residual))
        return out.view(residual.shape)
    return compute(_check_residual, *parts, implementation=implementation)


def _check_names(activation: str | None, implementation: str) -> None:
    if activation not in ACTIVATIONS:
        raise UsageError(f"activation {activation!r} is unknown", remedy="None, gelu_tanh or relu")
    if implementation not in IMPLEMENTATIONS:
        raise UsageError(
            f"implementation {implementation!r} is unknown", remedy=", ".join(IMPLEMENTATIONS)
        )


def _check(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    _: None = None,
) -> None:
    _check_product(_NAME, x, weight, bias)
    check_like(_NAME, x, norm_weight=norm_weight, norm_bias=norm_bias)
    check_shape(_NAME, (x.shape[-1],), norm_weight=norm_weight, norm_bias=norm_bias)
    check_row(_NAME, x)


def _check_residual(
    x: Tensor, _: None, __: None, weight: Tensor, bias: Tensor | None, residual: Tensor
) -> None:
    op = "residual_linear"
    _check_product(op, x, weight, bias)
    check_like(op, x, residual=residual)
    check_floating(op, "residual", residual)
    check_shape(op, (*x.shape[:-1], weight.shape[0]), residual=residual)


def _check_product(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_floating(op, "x", x)
    check_like(op, x, weight=weight, bias=bias)
    if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
        raise UsageError(
            f"{op}: weight has shape {tuple(weight.shape)}", remedy=f"(N, {x.shape[-1]})"
        )
    check_shape(op, (weight.shape[0],), bias=bias)
