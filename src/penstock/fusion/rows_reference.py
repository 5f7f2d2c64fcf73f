# SPDX-License-Identifier: Apache-2.0
"""The row kernels in plain torch: what runs without a GPU, and what the kernels are held to.

    z = residual + dropout(x + x_bias)        y = LayerNorm(z) * weight + bias

Float32 inside, float64 for float64; the mask is that of the kernels, bit for bit. Pure functions
whose arguments `rows` has checked: (..., N), and (M,) of statistics, M rows in all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import as_rows
from .philox import keep


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _dropped(x: Tensor, seed: Tensor | None, p: float) -> Tensor:
    """What is dropped is zero, what stays as much larger; without a seed nothing is."""
    if seed is None:
        return x
    rows = as_rows(x)
    stays = keep(seed, rows.shape[0], rows.shape[1], p).view(x.shape)
    return torch.where(stays, x * (1.0 / (1.0 - p)), 0.0)


def _normed(z: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    rows = (*z.shape[:-1], 1)
    return (_wide(z) - mean.view(rows)) * rstd.view(rows)


def forward(
    x: Tensor | None,
    residual: Tensor | None,
    x_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    *,
    p: float,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """y, z, mean and rstd of rows; float32 inside, as in the kernel.

    y, mean and rstd, (M,), are None without a weight, and z is None without an x.
    """
    first = x if x is not None else residual
    assert first is not None
    z = _wide(first) if x is None else _wide(x)
    if x is not None:
        if x_bias is not None:
            z = z + _wide(x_bias)
        z = _dropped(z, seed, p)
        if residual is not None:
            z = z + _wide(residual)
    # An operator must not return its input: nothing to drop and nothing to add is a copy.
    dtype = first.dtype
    if x is not None and residual is not None:
        dtype = torch.promote_types(dtype, residual.dtype)
    stored = z.to(dtype, copy=z is x, memory_format=torch.contiguous_format)
    if weight is None:
        return None, stored, None, None
    z = _wide(stored)
    mean = z.mean(-1, keepdim=True)
    centred = z - mean
    rstd = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
    y = centred * rstd * _wide(weight)
    if bias is not None:
        y = y + _wide(bias)
    kept = stored if x is not None else None
    return y.to(dtype).contiguous(), kept, mean.flatten(), rstd.flatten()


def backward(
    dy: Tensor | None,
    dz: Tensor | None,
    z: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    seed: Tensor | None,
    *,
    p: float,
    x_bias: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients of residual, x, weight, bias and x_bias; None for what does not apply.

    There is none of x where it is that of the residual, which is without dropout, and none of the
    residual where it is dz, which is without a LayerNorm.
    """
    total = torch.zeros_like(_wide(z)) if dz is None else _wide(dz)
    dresidual = dweight = dbias = dx_bias = dx_out = None
    if weight is not None:
        assert dy is not None
        assert mean is not None
        assert rstd is not None
        xhat = _normed(z, mean, rstd)
        dxhat = _wide(dy) * _wide(weight)
        c1 = (xhat * dxhat).mean(-1, keepdim=True)
        c2 = dxhat.mean(-1, keepdim=True)
        total = total + (dxhat - (xhat * c1 + c2)) * rstd.view(*z.shape[:-1], 1)
        dweight = as_rows(_wide(dy) * xhat).sum(0).to(weight.dtype)
        dbias = as_rows(_wide(dy)).sum(0).to(weight.dtype)
        dresidual = total.to(z.dtype)
    dx = _dropped(total, seed, p)
    if seed is not None:
        dx_out = dx.to(z.dtype)
    if x_bias:
        dx_bias = as_rows(dx).sum(0).to(z.dtype)
    return dresidual, dx_out, dweight, dbias, dx_bias


def normalised(
    z: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor | None, bias: Tensor | None
) -> Tensor:
    """What the LayerNorm of rows gave, from its statistics."""
    assert weight is not None
    assert mean is not None
    assert rstd is not None
    y = _normed(z, mean, rstd) * _wide(weight)
    return (y if bias is None else y + _wide(bias)).to(z.dtype)
