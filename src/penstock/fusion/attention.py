# SPDX-License-Identifier: Apache-2.0
"""Causal attention, its output projection, dropout and residual add as one operator.

    out = residual + dropout(SDPA(q, k, v) @ weight.T + bias)

q, k and v are strided views of one packed tensor, and the result of the attention is laid out as
the projection wants it, so nothing is copied in forward. Kept for backward: the packed tensor,
the attention's result, one float a row and head, and seeds. The attention itself is torch's (flash
or cuDNN): a kernel for attention and projection together would have to add up over heads, h times
the traffic it saves.

Where torch would take neither flash nor cuDNN attention (dropout on the CPU, for one), the same
is composed of torch's own differentiable parts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.errors import UsageError

from .arguments import as_rows, check_floating, check_like, check_once, check_shape
from .dropout_layernorm import dropout_add
from .guard import as_forward, autocast_of, needs_graph, once
from .layernorm_gemm import add_product, residual_linear, through_dropout
from .philox import check_probability, draw_seed

_NAME = "attention_projection"
# Values of torch.nn.attention.SDPBackend.
_FLASH, _CUDNN = 1, 3


def split_heads(qkv: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, (B, H, T, K) each, as views of (B, T, 3 D)."""
    batch, tokens, width = qkv.shape
    packed = qkv.view(batch, tokens, 3, n_heads, width // (3 * n_heads))
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def _merged(out: Tensor) -> Tensor:
    """Rows of all heads side by side, of (B, H, T, K): a view, as attentions lay it out."""
    batch, heads, tokens, size = out.shape
    return out.transpose(1, 2).reshape(batch * tokens, heads * size)


def _attend(kind: str, q: Tensor, k: Tensor, v: Tensor, p: float) -> tuple[Any, ...]:
    """The result (B, H, T, K) and what the backward of this kind of attention takes."""
    aten = torch.ops.aten
    if kind == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return out, (lse,), ()
    if kind == "flash":
        out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = (
            aten._scaled_dot_product_flash_attention(q, k, v, p, True)
        )
        return out, (lse, cum_q, cum_k, seed, offset), (max_q, max_k)
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = (
        aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, p, True)
    )
    return out, (lse, cum_q, cum_k, seed, offset), (max_q, max_k)


def _attend_backward(
    kind: str,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    kept: tuple[Any, ...],
    sizes: tuple[Any, ...],
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:
    aten = torch.ops.aten
    if kind == "cpu":
        (lse,) = kept
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, True
        )
    lse, cum_q, cum_k, seed, offset = kept
    if kind == "flash":
        return aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, cum_q, cum_k, *sizes, p, True, seed, offset
        )
    # The bias is a tensor by its schema, and an undefined one where there is none: None here.
    return aten._scaled_dot_product_cudnn_attention_backward(
        dout, q, k, v, out, lse, seed, offset, None, cum_q, cum_k, *sizes, p, True
    )


def _kind(q: Tensor, k: Tensor, v: Tensor, p: float) -> str | None:
    """Which of the attentions above torch would take itself; None for any other.

    Flash alone needs a head size that is a multiple of 8; torch pads for it, this does not.
    """
    if q.shape[-1] % 8 and q.device.type == "cuda":
        return None
    choice = torch._fused_sdp_choice(q, k, v, None, p, True)
    if q.device.type == "cpu":
        return "cpu" if choice == _FLASH and p == 0.0 else None
    return {_FLASH: "flash", _CUDNN: "cudnn"}.get(choice)


class _AttentionProjection(torch.autograd.Function):
    """On (B, T, 3 D) and rows of the residual."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor,
        seed: Tensor | None,
        n_heads: int,
        attention_p: float,
        p: float,
        kind: str,
    ) -> Tensor:
        q, k, v = split_heads(qkv, n_heads)
        out, kept, sizes = _attend(kind, q, k, v, attention_p)
        ctx.save_for_backward(qkv, weight, out, seed, *kept)
        ctx.sizes, ctx.n_heads, ctx.kind = sizes, n_heads, kind
        ctx.attention_p, ctx.p, ctx.has_bias = attention_p, p, bias is not None
        ctx.autocast = autocast_of(qkv)
        return add_product(_merged(out), weight, bias, residual, seed, p)

    @staticmethod
    @once
    @as_forward
    def backward(ctx: Any, dtotal: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        qkv, weight, out, seed, *kept = ctx.saved_tensors
        dtotal = dtotal.contiguous()
        drows, dbias = through_dropout(dtotal, seed, ctx.p, ctx.has_bias)
        rows = _merged(out)
        dweight = drows.T @ rows if ctx.needs_input_grad[1] else None
        dout = (drows @ weight).view(*qkv.shape[:2], ctx.n_heads, -1).transpose(1, 2)
        q, k, v = split_heads(qkv, ctx.n_heads)
        parts = _attend_backward(
            ctx.kind, dout, q, k, v, out, tuple(kept), ctx.sizes, ctx.attention_p
        )
        dqkv = torch.cat([part.transpose(1, 2) for part in parts], 2).flatten(2)
        return (dqkv, dweight, dbias, dtotal, *([None] * 5))


def attention_projection(
    qkv: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    *,
    n_heads: int,
    attention_p: float = 0.0,
    p: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """``residual + dropout(SDPA(q, k, v) @ weight.T + bias)``, causal.

    Args:
        qkv: (B, T, 3 D), queries before keys before values.
        weight: (D, D) of the projection.
        bias: (D,) of the projection.
        residual: (B, T, D).
        n_heads: Heads; divides D.
        attention_p: Probability that an attention weight is dropped.
        p: Probability that a result of the projection is dropped.
        seed: (1,) int64, for p; None draws one.

    Raises:
        UsageError: If shapes, dtypes or devices do not fit, or a probability is out of range.
    """
    p, attention_p = check_probability(p), check_probability(attention_p)
    check_once(_check, qkv, weight, bias, residual, n_heads)
    wanted = autocast_of(qkv)
    if wanted is not None and qkv.dtype != torch.float64:  # as torch has it for its attention
        qkv = qkv.to(wanted)
    kind = None
    # A compiler differentiates the parts itself, and cannot follow the choice.
    if needs_graph(qkv, weight, bias, residual) and not torch.compiler.is_compiling():
        # Detached: views that autograd follows cost the host as much as the attention does.
        q, k, v = split_heads(qkv.detach(), n_heads)
        kind = _kind(q.requires_grad_(), k, v, attention_p)
    if kind is not None:
        if p > 0.0 and seed is None:
            seed = draw_seed(qkv.device)
        out = _AttentionProjection.apply(
            *(qkv, weight, bias, as_rows(residual), seed if p > 0.0 else None),
            *(n_heads, attention_p, p, kind),
        )
        return out.view(residual.shape)
    q, k, v = split_heads(qkv, n_heads)
    attended = F.scaled_dot_product_attention(q, k, v, dropout_p=attention_p, is_causal=True)
    merged = attended.transpose(1, 2).flatten(2)
    if p == 0.0:
        return residual_linear(merged, weight, bias, residual)
    return dropout_add(F.linear(merged, weight), residual, p=p, x_bias=bias, seed=seed)


def _check(
    qkv: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, n_heads: int
) -> None:
    check_floating(_NAME, "qkv", qkv)
    check_floating(_NAME, "residual", residual)
    check_like(_NAME, qkv, weight=weight, bias=bias, residual=residual)
    d = residual.shape[-1]
    if qkv.ndim != 3:
        raise UsageError(f"{_NAME}: qkv has shape {tuple(qkv.shape)}", remedy="(B, T, 3 D)")
    check_shape(_NAME, (*residual.shape[:-1], 3 * d), qkv=qkv)
    check_shape(_NAME, (d, d), weight=weight)
    check_shape(_NAME, (d,), bias=bias)
    if n_heads < 1 or d % n_heads:
        raise UsageError(f"{_NAME}: {n_heads} heads do not divide {d}", remedy="a divisor")
