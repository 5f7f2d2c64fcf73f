# SPDX-License-Identifier: Apache-2.0
"""Column sums in their second half: over programs, each of which has summed up some rows.

Torch takes two kernels for it, a sum and a conversion, and has the host start both. Here a program
adds up a block of columns in registers. Float32, in one order. Called by `columns` alone.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["P"])  # it follows the number of rows; as in `gemm`
def sums(  # type: ignore[no-untyped-def]
    partials_ptr,  # (S, P, N) float32
    out_ptr,  # (S, N) out
    P,
    N,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Grid: one program for each of S vectors and each block of columns."""
    blocks = tl.cdiv(N, BLOCK_N)
    vector = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_P, BLOCK_N], dtype=tl.float32)
    start = tl.program_id(0) * 0
    while start < P:
        rows = start + tl.arange(0, BLOCK_P)
        at = (vector * P + rows)[:, None] * N + columns[None, :]
        inside = (rows[:, None] < P) & (columns[None, :] < N)
        total += tl.load(partials_ptr + at, mask=inside, other=0.0)
        start += BLOCK_P
    out = out_ptr + vector * N + columns
    tl.store(out, tl.sum(total, axis=0).to(out_ptr.dtype.element_ty), mask=columns < N)
