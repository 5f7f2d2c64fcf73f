# SPDX-License-Identifier: Apache-2.0
"""Causal attention, its output projection, dropout and residual add.

    out = residual + dropout(SDPA(q, k, v) @ weight.T + bias)

The attention itself is torch's (flash or cuDNN): a kernel for attention and projection together
would have to add up over heads, h times the traffic it saves. Without dropout the residual enters
the product as its C; with dropout, the bias, the mask, which is not kept, and the sum are one
kernel behind it.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from penstock.errors import UsageError

from .arguments import check_floating, check_like, check_once, check_shape
from .dropout_layernorm import dropout_add
from .layernorm_gemm import residual_linear
from .philox import check_probability

_NAME = "attention_projection"


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
    q, k, v = (part.unflatten(2, (n_heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=2))
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
