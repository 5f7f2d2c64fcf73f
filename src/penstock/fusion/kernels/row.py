# SPDX-License-Identifier: Apache-2.0
"""Rows in one pass: bias, dropout, residual add and LayerNorm, forward and backward.

One program holds a whole row in registers, so a row is read once and the variance is taken in two
passes over registers, without cancellation. All arithmetic and all statistics are float32. The
dropout mask is a pure function of (seed, row, column), so backward draws it again and nothing of
it is stored. Shapes: M rows, N columns; rows may be strided, columns lie side by side. Called by
`dropout_layernorm` alone, which checks arguments.
"""

from __future__ import annotations

import triton
import triton.language as tl

# As many as cuRAND's and flash-attention's generators take of Philox 4x32 (Salmon et al., SC 2011,
# table 2: 7 is the least that passes BigCrush).
ROUNDS = tl.constexpr(7)


@triton.jit
def keep_mask(seed_ptr, row, threshold, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which columns of a row stay: one Philox counter (column / 4, row) gives four of them.

    All four words are used: with one a column the integer work of the generator, not memory,
    would set the speed of the kernel.
    """
    seed = tl.load(seed_ptr)
    group = tl.arange(0, BLOCK // 4)
    zero = group * 0
    r0, r1, r2, r3 = tl.philox(seed, group, zero + row, zero, zero, ROUNDS)
    # interleave(a, b) is a0 b0 a1 b1 ..., so this is r0 r1 r2 r3 of group 0, then of group 1.
    drawn = tl.interleave(tl.interleave(r0, r2), tl.interleave(r1, r3))
    return drawn.to(tl.int32, bitcast=True) >= threshold


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    x_ptr,  # (M, N) input of the dropout, or unused
    x_bias_ptr,  # (N,) added to x before the dropout, or unused
    residual_ptr,  # (M, N), or unused
    weight_ptr,  # (N,)
    bias_ptr,  # (N,)
    z_ptr,  # (M, N) out: residual + dropout(x + x_bias)
    y_ptr,  # (M, N) out: LayerNorm(z)
    mean_ptr,  # (M,) out, float32, or unused
    rstd_ptr,  # (M,) out, float32, or unused
    seed_ptr,  # (1,) int64
    x_stride,
    residual_stride,
    N,
    eps,
    threshold,
    scale,
    HAS_X: tl.constexpr,
    HAS_X_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_NORM_BIAS: tl.constexpr,
    STORE_Z: tl.constexpr,
    STORE_STATISTICS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: one program a row."""
    # torch.compile gives double precision, which everything that it meets would become.
    scale = tl.cast(scale, tl.float32)
    eps = tl.cast(eps, tl.float32)
    row = tl.program_id(0)
    at = row.to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < N
    z = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_X:
        z = tl.load(x_ptr + at * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_X_BIAS:
            z += tl.load(x_bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_DROPOUT:
            z = tl.where(keep_mask(seed_ptr, row, threshold, BLOCK), z * scale, 0.0)
    if HAS_RESIDUAL:
        kept = tl.load(residual_ptr + at * residual_stride + columns, mask=inside, other=0.0)
        z += kept.to(tl.float32)
    if STORE_Z:
        # The statistics are those of z as it is stored, because backward has no other.
        stored = z.to(z_ptr.dtype.element_ty)
        tl.store(z_ptr + at * N + columns, stored, mask=inside)
        z = stored.to(tl.float32)
    if HAS_NORM:
        mean = tl.sum(tl.where(inside, z, 0.0), axis=0) / N
        centred = tl.where(inside, z - mean, 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / N + eps)
        y = centred * rstd * tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_NORM_BIAS:
            y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + at * N + columns, y.to(y_ptr.dtype.element_ty), mask=inside)
        if STORE_STATISTICS:
            tl.store(mean_ptr + row, mean)
            tl.store(rstd_ptr + row, rstd)


@triton.jit(do_not_specialize=["M"])  # as in `gemm`
def backward(  # type: ignore[no-untyped-def]
    dy_ptr,  # (M, N) gradient of y, or unused
    dz_ptr,  # (M, N) gradient of z from elsewhere, or unused
    z_ptr,  # (M, N)
    weight_ptr,  # (N,)
    mean_ptr,  # (M,) float32
    rstd_ptr,  # (M,) float32
    seed_ptr,  # (1,) int64
    bias_ptr,  # (N,) of the LayerNorm, for y
    dresidual_ptr,  # (M, N) out, where it differs from dz: with LayerNorm
    dx_ptr,  # (M, N) out, where it differs from dresidual
    y_ptr,  # (M, N) out: what forward gave, for who did not keep it
    partials_ptr,  # (S, P, N) out, float32: sums of a program's rows for the S vectors wanted
    z_stride,
    M,
    N,
    threshold,
    scale,
    HAS_DZ: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_X_BIAS: tl.constexpr,
    HAS_NORM_BIAS: tl.constexpr,
    STORE_Y: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: P programs; program p takes rows p, p + P, ... and keeps column sums in registers."""
    scale = tl.cast(scale, tl.float32)  # as in forward
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < N
    weight = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_NORM:
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    dweight = tl.zeros([BLOCK], dtype=tl.float32)
    dbias = tl.zeros([BLOCK], dtype=tl.float32)
    dx_bias = tl.zeros([BLOCK], dtype=tl.float32)
    row = first
    while row < M:
        at = row.to(tl.int64) * N
        dz = tl.zeros([BLOCK], dtype=tl.float32)
        if HAS_DZ:
            dz += tl.load(dz_ptr + at + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_NORM:
            dy = tl.load(dy_ptr + at + columns, mask=inside, other=0.0).to(tl.float32)
            z_row = z_ptr + row.to(tl.int64) * z_stride
            z = tl.load(z_row + columns, mask=inside, other=0.0).to(tl.float32)
            rstd = tl.load(rstd_ptr + row)
            xhat = tl.where(inside, (z - tl.load(mean_ptr + row)) * rstd, 0.0)
            if STORE_Y:
                y = xhat * weight
                if HAS_NORM_BIAS:  # anew for each row: kept, it would take 16 registers more
                    y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
                tl.store(y_ptr + at + columns, y.to(y_ptr.dtype.element_ty), mask=inside)
            dxhat = weight * dy
            c1 = tl.sum(xhat * dxhat, axis=0) / N
            c2 = tl.sum(dxhat, axis=0) / N
            dz += (dxhat - (xhat * c1 + c2)) * rstd
            dweight += dy * xhat
            dbias += dy
            out = dresidual_ptr + at + columns
            tl.store(out, dz.to(dresidual_ptr.dtype.element_ty), mask=inside)
        dx = dz
        if HAS_DROPOUT:
            dx = tl.where(keep_mask(seed_ptr, row, threshold, BLOCK), dz * scale, 0.0)
            tl.store(dx_ptr + at + columns, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if HAS_X_BIAS:
            dx_bias += tl.where(inside, dx, 0.0)
        row += programs
    partial = partials_ptr + first.to(tl.int64) * N + columns
    size = programs.to(tl.int64) * N
    if HAS_NORM:
        tl.store(partial, dweight, mask=inside)
        tl.store(partial + size, dbias, mask=inside)
        partial += 2 * size
    if HAS_X_BIAS:
        tl.store(partial, dx_bias, mask=inside)
