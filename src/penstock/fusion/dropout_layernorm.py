# SPDX-License-Identifier: Apache-2.0
"""Dropout, residual add and LayerNorm as one operator with a backward: kernel and reference.

    z = residual + dropout(x + x_bias)        y = LayerNorm(z) * weight + bias

Kept for backward: z, two floats a row and one seed; neither the mask nor x nor y. Gradients of
the biases are column sums that backward has in registers anyway. On a GPU with triton the kernels
of `kernels.row` run, else the reference, which is plain torch; both draw the same mask from the
same seed. float64 is for checking and is always the reference's.

Usable under torch.compile, with fake tensors, in CUDA graphs and under activation checkpointing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from penstock.errors import UsageError

from . import kernels
from .arguments import as_rows, check_floating, check_like, check_row, check_shape
from .launch import device_programs, launch, operator, seen_by_torch
from .philox import check_probability, draw_seed, keep, threshold

_NAME = "dropout_layernorm"


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
    y, z = _apply(x, residual, weight, bias, p=p, x_bias=x_bias, eps=eps, seed=seed)
    return y, z


def dropout_add(
    x: Tensor,
    residual: Tensor | None,
    *,
    p: float,
    x_bias: Tensor | None = None,
    seed: Tensor | None = None,
) -> Tensor:
    """``residual + dropout(x + x_bias)`` without a stored mask; arguments as above."""
    return _apply(x, residual, None, None, p=p, x_bias=x_bias, eps=0.0, seed=seed)[1]


def _apply(
    x: Tensor | None,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    p: float,
    x_bias: Tensor | None,
    eps: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    first = x if x is not None else residual
    p = check_probability(p)
    _check(first, x, residual, weight, bias, x_bias)
    assert first is not None
    shape = first.shape
    if x is None:
        p = 0.0
    if p > 0.0 and seed is None:
        seed = draw_seed(first.device)
    flat_x, flat_residual = (None if part is None else as_rows(part) for part in (x, residual))
    seed = seed if p > 0.0 else None
    grad = torch.is_grad_enabled() and any(
        part is not None and part.requires_grad for part in (x, residual, x_bias, weight, bias)
    )
    arguments = (flat_x, flat_residual, x_bias, weight, bias, seed, p, eps)
    if grad and not seen_by_torch():
        y, z, _, _ = _Rows.apply(*arguments)
    else:
        y, z, _, _ = forward_rows(*arguments)
    if x is None:
        assert residual is not None
        z = residual
    return y.view(shape) if weight is not None else y, z.view(shape)


def _check(
    first: Tensor | None,
    x: Tensor | None,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    x_bias: Tensor | None,
) -> None:
    if first is None:
        raise UsageError(f"{_NAME}: neither x nor residual", remedy="at least one of them")
    check_like(_NAME, first, residual=residual, weight=weight, bias=bias, x_bias=x_bias)
    for name, tensor in (("x", x), ("residual", residual)):
        if tensor is not None:
            check_floating(_NAME, name, tensor)
    check_shape(_NAME, "residual", residual, tuple(first.shape))
    for name, tensor in (("weight", weight), ("bias", bias), ("x_bias", x_bias)):
        check_shape(_NAME, name, tensor, (first.shape[-1],))
    if x is None and x_bias is not None:
        raise UsageError(f"{_NAME}: x_bias without x", remedy="x_bias=None")
    check_row(_NAME, first)


# ---- Reference ---------------------------------------------------------------------------------


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def reference_forward(
    x: Tensor | None,
    residual: Tensor | None,
    x_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    p: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, z, mean and rstd of rows, in plain torch; float32 inside, as in the kernel."""
    first = x if x is not None else residual
    assert first is not None
    z = _wide(first) if x is None else _wide(x)
    if x is not None:
        if x_bias is not None:
            z = z + _wide(x_bias)
        if seed is not None:
            stays = keep(seed, z.shape[0], z.shape[1], p)
            z = torch.where(stays, z * (1.0 / (1.0 - p)), 0.0)
        if residual is not None:
            z = z + _wide(residual)
    # An operator must not return its input: nothing to drop and nothing to add is a copy.
    stored = z.to(first.dtype, copy=z is x)
    if weight is None:
        return stored.new_empty(0), stored, z.new_empty(0), z.new_empty(0)
    z = _wide(stored)
    mean = z.mean(1)
    centred = z - mean.unsqueeze(1)
    rstd = torch.rsqrt((centred * centred).mean(1) + eps)
    y = centred * rstd.unsqueeze(1) * _wide(weight)
    if bias is not None:
        y = y + _wide(bias)
    return y.to(first.dtype), stored if x is not None else stored.new_empty(0), mean, rstd


def reference_backward(
    dy: Tensor | None,
    dz: Tensor | None,
    z: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    seed: Tensor | None,
    p: float,
    x_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of residual, x, weight, bias and x_bias; what does not apply is empty.

    That of x is empty where it is that of the residual, which is without dropout; that of the
    residual is empty where it is dz, which is without a LayerNorm.
    """
    total = torch.zeros_like(_wide(z)) if dz is None else _wide(dz)
    # An operator must not return a tensor twice.
    dresidual, dweight, dbias, dx_bias, dx_out = (z.new_empty(0) for _ in range(5))
    if weight is not None:
        assert dy is not None
        xhat = (_wide(z) - mean.unsqueeze(1)) * rstd.unsqueeze(1)
        dxhat = _wide(dy) * _wide(weight)
        c1 = (xhat * dxhat).mean(1, keepdim=True)
        c2 = dxhat.mean(1, keepdim=True)
        total = total + (dxhat - (xhat * c1 + c2)) * rstd.unsqueeze(1)
        dweight = (_wide(dy) * xhat).sum(0).to(weight.dtype)
        dbias = _wide(dy).sum(0).to(weight.dtype)
        dresidual = total.to(z.dtype)
    dx = total
    if seed is not None:
        stays = keep(seed, z.shape[0], z.shape[1], p)
        dx = torch.where(stays, total * (1.0 / (1.0 - p)), 0.0)
        dx_out = dx.to(z.dtype)
    if x_bias:
        dx_bias = dx.sum(0).to(z.dtype)
    return dresidual, dx_out, dweight, dbias, dx_bias


# ---- Kernels -----------------------------------------------------------------------------------


def _block(columns: int) -> tuple[int, int]:
    """Columns that a program spans, and its warps: 16 elements a thread, as wide loads want."""
    block = max(16, 1 << (columns - 1).bit_length())
    return block, max(1, min(16, block // 512))


def _on_kernel(tensor: Tensor) -> bool:
    return tensor.dtype != torch.float64 and kernels.usable(tensor.device.type)


def _forward(
    x: Tensor | None,
    residual: Tensor | None,
    x_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    p: float,
    eps: float,
    *,
    wrapped: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first = x if x is not None else residual
    assert first is not None
    if not _on_kernel(first):
        return reference_forward(x, residual, x_bias, weight, bias, seed, p, eps)
    from .kernels import row

    m, n = first.shape[0], int(first.shape[1])  # a kernel is for one width
    stats = m if weight is not None else 0
    y = first.new_empty((m, n) if weight is not None else (0,))
    z = first.new_empty((m, n) if x is not None else (0,))
    mean = torch.empty(stats, dtype=torch.float32, device=first.device)
    rstd = torch.empty(stats, dtype=torch.float32, device=first.device)
    block, warps = _block(n)
    if m == 0:
        return y, z, mean, rstd

    def given(tensor: Tensor | None) -> Tensor:
        return first if tensor is None else tensor

    launch(
        row.forward,
        (m,),
        *(given(x), given(x_bias), given(residual), given(weight), given(bias)),
        *(given(z if x is not None else None), y, mean, rstd, given(seed)),
        *(given(x).stride(0), given(residual).stride(0), n, eps, threshold(p), 1.0 / (1.0 - p)),
        HAS_X=x is not None,
        HAS_X_BIAS=x_bias is not None,
        HAS_RESIDUAL=residual is not None,
        HAS_DROPOUT=seed is not None,
        HAS_NORM=weight is not None,
        HAS_NORM_BIAS=bias is not None,
        STORE_Z=x is not None,
        BLOCK=block,
        num_warps=warps,
        wrapped=wrapped,
    )
    return y, z, mean, rstd


def _backward(
    dy: Tensor | None,
    dz: Tensor | None,
    z: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    seed: Tensor | None,
    p: float,
    x_bias: bool,
    *,
    wrapped: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if not _on_kernel(z) or z.numel() == 0:
        return reference_backward(dy, dz, z, weight, mean, rstd, seed, p, x_bias)
    from .kernels import row

    m, n = z.shape[0], int(z.shape[1])
    block, _ = _block(n)
    # Half as many elements a thread as in forward: with the column sums 16 take 165 registers,
    # and one thread block of 8 warps would have a processor to itself.
    warps = max(1, min(16, block // 256))
    programs = min(m, device_programs(z.device, per_processor=4 if block <= 2048 else 2))

    def partial(wanted: bool) -> Tensor:
        shape = (programs, n) if wanted else (0,)
        return torch.empty(shape, dtype=torch.float32, device=z.device)

    norm = weight is not None
    dresidual = z.new_empty((m, n) if norm else (0,))
    dx = z.new_empty((m, n) if seed is not None else (0,))
    dweight, dbias, dx_bias = partial(norm), partial(norm), partial(x_bias)

    def given(tensor: Tensor | None) -> Tensor:
        return z if tensor is None else tensor

    launch(
        row.backward,
        (programs,),
        *(given(dy), given(dz), z, given(weight), mean, rstd, given(seed)),
        *(dresidual, dx, dweight, dbias, dx_bias),
        *(z.stride(0), m, n, threshold(p), 1.0 / (1.0 - p)),
        HAS_DZ=dz is not None,
        HAS_DROPOUT=seed is not None,
        HAS_NORM=norm,
        HAS_X_BIAS=x_bias,
        BLOCK=block,
        num_warps=warps,
        wrapped=wrapped,
    )
    sums = [
        part.sum(0).to(z.dtype) if part.numel() else z.new_empty(0)
        for part in (dweight, dbias, dx_bias)
    ]
    return dresidual, dx, sums[0], sums[1], sums[2]


# ---- Operators ---------------------------------------------------------------------------------


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _forward(x, residual, x_bias, weight, bias, seed, p, eps, wrapped=True)


@operator("dropout_layernorm_backward")
def _backward_op(
    dy: Tensor | None,
    dz: Tensor | None,
    z: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    seed: Tensor | None,
    p: float,
    x_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _backward(dy, dz, z, weight, mean, rstd, seed, p, x_bias, wrapped=True)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, x_bias, weight, _, seed, p, _ = inputs
    _, z, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, rstd)
    # Without x, z is the residual itself and is kept as that.
    ctx.save_for_backward(z if x is not None else residual, weight, mean, rstd, seed)
    ctx.p, ctx.has = p, (x is not None, residual is not None, x_bias is not None)
    ctx.has_bias = inputs[4] is not None


def _gradients(ctx: Any, dy: Tensor | None, dz: Tensor | None, *_: Any) -> tuple[Any, ...]:
    z, weight, mean, rstd, seed = ctx.saved_tensors
    has_x, has_residual, has_x_bias = ctx.has
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
        dbias_x = dz.sum(0) if has_x_bias else None
        return (dz, dz if has_residual else None, dbias_x, *([None] * 5))
    dresidual, dx, dweight, dbias, dx_bias = backward_rows(
        dy, dz, z, weight, mean, rstd, seed, ctx.p, has_x_bias
    )
    summed = dz if weight is None else dresidual
    return (
        (dx if seed is not None else summed) if has_x else None,
        summed if has_residual else None,
        dx_bias if has_x_bias else None,
        dweight if weight is not None else None,
        dbias if ctx.has_bias else None,
        *(None, None, None),
    )


_forward_op.register_autograd(_gradients, setup_context=_setup)


class _Rows(torch.autograd.Function):
    """The same for autograd alone, without the operator's way through the dispatcher."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # type: ignore[override]
        return _forward(*arguments)

    setup_context = staticmethod(_setup)
    backward = staticmethod(_gradients)


# An operator goes through the dispatcher and a check of what it returns: where nothing has to see
# it, these leave it out.


def forward_rows(
    x: Tensor | None,
    residual: Tensor | None,
    x_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    p: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, z, mean and rstd of rows: kernel or reference, as an operator if torch has to see it."""
    run = torch.ops.penstock.dropout_layernorm if seen_by_torch() else _forward
    return run(x, residual, x_bias, weight, bias, seed, p, eps)


def backward_rows(
    dy: Tensor | None,
    dz: Tensor | None,
    z: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    seed: Tensor | None,
    p: float,
    x_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients as `reference_backward` gives them, in the same two ways."""
    run = torch.ops.penstock.dropout_layernorm_backward if seen_by_torch() else _backward
    return run(dy, dz, z, weight, mean, rstd, seed, p, x_bias)
