# SPDX-License-Identifier: Apache-2.0
"""Backward of an activation in one pass: its gradient, the activation itself, and column sums.

Torch takes a pass for each: of tensors as wide as a feed-forward part's inner one, which are four
times its input, the activation reads one and writes one, its gradient reads two and writes one,
and the gradient of the bias reads one; here two are read and two written. All arithmetic is
float32. Shapes: M rows, N columns, all contiguous. Called by `activation` alone.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["M"])  # as in `gemm`
def backward(  # type: ignore[no-untyped-def]
    grad_ptr,  # (M, N) gradient of the activation's result
    before_ptr,  # (M, N) what the activation took
    dbefore_ptr,  # (M, N) out; may be grad
    after_ptr,  # (M, N) out: the activation's result, or unused
    partials_ptr,  # (P, N) out, float32: column sums of a program's rows of dbefore, or unused
    M,
    N,
    ACTIVATION: tl.constexpr,  # as in `gemm`: 1 tanh-GELU, 2 ReLU
    STORE_AFTER: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Grid: P programs for each block of columns; p of them takes tiles p, p + P, ... of rows."""
    blocks = tl.cdiv(N, BLOCK_N)
    first = tl.program_id(0) // blocks
    programs = tl.num_programs(0) // blocks
    columns = (tl.program_id(0) % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    start = first * BLOCK_M
    while start < M:
        rows = start + tl.arange(0, BLOCK_M)
        at = rows.to(tl.int64)[:, None] * N + columns[None, :]
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(before_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if ACTIVATION == 1:
            # As in `gemm`; with u = 2 sqrt(2 / pi) (x + c x^3) and s = sigmoid(u) the activation is
            # x s, and its derivative s + x s (1 - s) du/dx.
            square = 0.044715 * x * x
            s = tl.sigmoid(1.5957691216057308 * x * (1.0 + square))
            after = x * s
            dbefore = grad * (s + after * (1.0 - s) * 1.5957691216057308 * (1.0 + 3.0 * square))
        else:
            after = tl.where(x <= 0.0, 0.0, x)  # a NaN stays one, as in torch
            dbefore = tl.where(x <= 0.0, 0.0, grad)
        if STORE_AFTER:
            tl.store(after_ptr + at, after.to(after_ptr.dtype.element_ty), mask=inside)
        tl.store(dbefore_ptr + at, dbefore.to(dbefore_ptr.dtype.element_ty), mask=inside)
        total += dbefore
        start += programs * BLOCK_M
    if SUM:
        out = partials_ptr + first.to(tl.int64) * N + columns
        tl.store(out, tl.sum(total, axis=0), mask=columns < N)
