# SPDX-License-Identifier: Apache-2.0
"""The kernel of `kernels.gemm` from the host's side: its tiles, a launch of it, and repeated ones.

    out = act(LayerNorm(x) @ W.T + bias) + residual

On rows, without a graph. Small models are bound by the host: what a layout of arguments decides is
decided once, and a `Ready` is for those who know already that their arguments have it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .launch import Start, operator, seen_by_torch

ACTIVATIONS = {None: 0, "gelu_tanh": 1, "relu": 2}


class Tile(NamedTuple):
    """How the kernel divides a product.

    Attributes:
        m: Rows of a tile of the result.
        n: Columns of it.
        k: Depth of a step.
        stages: Steps on their way at a time.
        warps: Of a program.
    """

    m: int
    n: int
    k: int
    stages: int
    warps: int

    @property
    def name(self) -> str:
        """As `Tile.read` takes it."""
        return "x".join(map(str, self))

    @staticmethod
    def read(name: str) -> Tile:
        """The tile of a name."""
        return Tile(*map(int, name.split("x")))

    def shared_bytes(self, element: int) -> int:
        """Shared memory that the steps on their way take."""
        return (self.m + self.n) * self.k * element * self.stages


# Few, because each is compiled for each combination of epilogues, 0.5 to 2 s apiece.
WIDE_TILES = (
    Tile(128, 256, 64, 3, 8),
    Tile(128, 128, 64, 4, 8),
    Tile(128, 128, 64, 3, 4),
    Tile(64, 128, 64, 4, 4),
)
NARROW_TILES = (Tile(16, 64, 128, 4, 4), Tile(16, 32, 256, 3, 4))
# Rows up to which a product is a matrix-vector product for practical purposes.
FEW_ROWS = 16
MOST_SHARED_BYTES = 200 * 1024


def tiles(m: int, dtype: torch.dtype) -> list[Tile]:
    """The tiles worth trying for `m` rows."""
    found = NARROW_TILES if m <= FEW_ROWS else WIDE_TILES
    return [tile for tile in found if tile.shared_bytes(dtype.itemsize) <= MOST_SHARED_BYTES]


class Ready:
    """The kernel for arguments of one layout; a call looks at nothing, and hands them over.

    Args:
        x: (M, K).
        weight: (N, K), any strides.
        residual: (M, N), or None.
        shape: The result's, (M, N) or with more leading dimensions.
        activation: A value of `ACTIVATIONS`.
        eps: Of the LayerNorm in the kernel.
        tile: The numbers of a `Tile`, as an operator takes them.
        norm: Whether the kernel takes a LayerNorm.
        bias: Whether there is a bias, or an offset.

    Attributes:
        norm: As given.
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        residual: Tensor | None,
        shape: tuple[int, ...],
        activation: int,
        eps: float,
        tile: list[int],
        *,
        norm: bool,
        bias: bool,
    ) -> None:
        from .kernels import gemm

        (m, k), n = x.shape, weight.shape[0]
        block_m, block_n, block_k, stages, warps = tile
        tf32 = x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
        residual_stride = 0 if residual is None else residual.stride(0)
        self.norm, self._shape = norm, shape
        self._start = Start(
            gemm.forward,
            -(-m // block_m) * -(-n // block_n),
            (
                *(m, n, k, x.stride(0), weight.stride(0), weight.stride(1), residual_stride, eps),
                -(-k // block_k),
            ),
            {
                "HAS_NORM": norm,
                "HAS_BIAS": bias,
                "HAS_RESIDUAL": residual is not None,
                "ACTIVATION": activation,
                "PRECISION": "tf32" if tf32 else "ieee",
                "EVEN_K": k % block_k == 0,
                "BLOCK_M": block_m,
                "BLOCK_N": block_n,
                "BLOCK_K": block_k,
                "GROUP_M": 8,
            },
            device=x.device,
            warps=warps,
            stages=stages,
        )

    def __call__(self, x: Tensor, *others: Tensor | None, traced: bool = False) -> Tensor:
        """The result; x and residual may have other leading dimensions if they are contiguous.

        Args:
            x: As for the first call.
            others: weight, bias, gamma, w_gamma and residual.
            traced: Whether a compiler looks.
        """
        out = x.new_empty(self._shape)
        given = [x if tensor is None else tensor for tensor in (x, *others, out)]
        (self._start.traced if traced else self._start)(*given)
        return out


def _run_kernel(*arguments: Any, traced: bool = False) -> Tensor:
    x, gamma, w_gamma, weight, bias, residual, activation, eps, tile = arguments
    shape = x.shape[0], weight.shape[0]
    if 0 in shape:
        return x.new_empty(shape)
    has = gamma is not None, bias is not None
    ready = Ready(*(x, weight, residual, shape, activation, eps, tile), norm=has[0], bias=has[1])
    return ready(*(x, weight, bias, gamma, w_gamma, residual), traced=traced)


@operator("layernorm_gemm")
def _gemm_op(
    x: Tensor,
    gamma: Tensor | None,
    w_gamma: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: int,
    eps: float,
    tile: list[int],
) -> Tensor:
    parts = (x, gamma, w_gamma, weight, bias, residual)
    return _run_kernel(*parts, activation, eps, tile, traced=True)


def kernel_product(*arguments: Any) -> Tensor:
    """One launch of the kernel on rows, (M, K) to (M, N), without a graph.

    Arguments are those of the operator: x (M, K); gamma (K,) and w_gamma (N,) of `fold` for a
    LayerNorm, or None; weight (N, K), any strides; bias (N,), with gamma the offset of `fold`;
    residual (M, N), added last; a value of `ACTIVATIONS`; the LayerNorm's eps; a tile's numbers.
    """
    run = torch.ops.penstock.layernorm_gemm if seen_by_torch() else _run_kernel
    out: Tensor = run(*arguments)
    return out
