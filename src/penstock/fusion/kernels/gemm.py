# SPDX-License-Identifier: Apache-2.0
"""One matrix product with what stands around it: LayerNorm before, activation or residual behind.

    out = act(LayerNorm(x) @ W.T + bias) + residual

The LayerNorm is deferred: with s = 1 / sigma, m = mean and any number c of a row,

    LayerNorm(x) @ W.T + bias = s * (((x - c) * gamma) @ W.T - (m - c) * (W @ gamma)) + offset

where offset = W @ beta + bias. Sums of x - c and of its square are taken from the tiles that the
product loads anyway, so x is read once and no normalised copy of it exists. c is the mean of the
row's first tile: it keeps rows whose mean is far beyond their spread exact, which with c = 0 lose
|m| / sigma of their precision both in the variance and in the rounding of x * gamma. W @ gamma
and offset are two vectors that the caller keeps; W itself is used as it is, so a pager moves no
second copy of it. Called by `layernorm_gemm` alone, which checks arguments.

Source: deferred normalisation as in CODA (arXiv 2605.19269) and FlashNorm (arXiv 2407.09577);
the reference point c is ours.
"""

from __future__ import annotations

import triton
import triton.language as tl


# The number of rows differs from prompt to prompt: no kernel of its own for multiples of 16, or 1.
@triton.jit(do_not_specialize=["M", "steps"])
def forward(  # type: ignore[no-untyped-def]
    x_ptr,  # (M, K)
    w_ptr,  # (N, K), any strides
    bias_ptr,  # (N,), with LayerNorm the float32 offset
    gamma_ptr,  # (K,)
    w_gamma_ptr,  # (N,) float32: W @ gamma
    residual_ptr,  # (M, N)
    out_ptr,  # (M, N)
    M,
    N,
    K,
    x_stride,
    w_stride_n,
    w_stride_k,
    residual_stride,
    eps,
    steps,  # tiles along K
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,  # 0 none, 1 tanh-GELU, 2 ReLU
    PRECISION: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Grid: one program a tile of out, in bands of GROUP_M rows of tiles so that L2 is reused."""
    eps = tl.cast(eps, tl.float32)  # torch.compile gives it in double precision
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    band = GROUP_M * tiles_n
    first_m = (pid // band) * GROUP_M
    high = tl.minimum(tiles_m - first_m, GROUP_M)
    rows = (first_m + (pid % band) % high) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = ((pid % band) // high) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    # Rows and columns beyond the edge wrap around: what they give is not stored.
    row_at = (rows % M).to(tl.int64)
    column_at = (columns % N).to(tl.int64)
    x_at = x_ptr + row_at[:, None] * x_stride + inner[None, :]
    w_at = w_ptr + column_at[None, :] * w_stride_n + inner[:, None].to(tl.int64) * w_stride_k

    centre = tl.zeros([BLOCK_M], dtype=tl.float32)
    if HAS_NORM:
        tile = tl.load(x_at, mask=inner[None, :] < K, other=0.0).to(tl.float32)
        centre = tl.sum(tile, axis=1) / tl.minimum(K, BLOCK_K)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    squares = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for step in range(0, steps):
        if EVEN_K:
            x = tl.load(x_at)
            w = tl.load(w_at)
        else:
            left = K - step * BLOCK_K
            x = tl.load(x_at, mask=inner[None, :] < left, other=0.0)
            w = tl.load(w_at, mask=inner[:, None] < left, other=0.0)
        if HAS_NORM:
            shifted = x.to(tl.float32) - centre[:, None]
            if EVEN_K:
                gamma = tl.load(gamma_ptr + step * BLOCK_K + inner)
            else:
                within = inner < K - step * BLOCK_K
                shifted = tl.where(within[None, :], shifted, 0.0)
                gamma = tl.load(gamma_ptr + step * BLOCK_K + inner, mask=within, other=0.0)
            total += tl.sum(shifted, axis=1)
            squares += tl.sum(shifted * shifted, axis=1)
            x = (shifted * gamma.to(tl.float32)[None, :]).to(x.dtype)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        x_at += BLOCK_K
        w_at += BLOCK_K * w_stride_k

    if HAS_NORM:
        mean = total / K
        variance = tl.maximum(squares / K - mean * mean, 0.0)
        w_gamma = tl.load(w_gamma_ptr + column_at)
        acc = (acc - mean[:, None] * w_gamma[None, :]) * (1.0 / tl.sqrt(variance + eps))[:, None]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + column_at).to(tl.float32)[None, :]
    if ACTIVATION == 1:
        # (1 + tanh(u)) / 2 is sigmoid(2 u); u = sqrt(2 / pi) * (x + 0.044715 x^3).
        acc = acc * tl.sigmoid(1.5957691216057308 * acc * (1.0 + 0.044715 * acc * acc))
    if ACTIVATION == 2:
        acc = tl.maximum(acc, 0.0)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    if HAS_RESIDUAL:
        kept = residual_ptr + row_at[:, None] * residual_stride + column_at[None, :]
        acc += tl.load(kept, mask=inside, other=0.0).to(tl.float32)
    out_at = out_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=inside)
