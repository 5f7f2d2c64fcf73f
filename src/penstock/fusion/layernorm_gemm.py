# SPDX-License-Identifier: Apache-2.0
"""A linear layer with the LayerNorm before it and the activation or residual behind it.

Without a graph the product may be one Triton kernel (`kernels.gemm`), or a LayerNorm and a library
product, with or without its own epilogue: whichever was measured fastest for the shape (`tuning`),
and the library where nothing was measured. With a graph it is an operator that keeps its input and
two floats a row, and takes the LayerNorm again in backward. The references here are plain torch,
the deferred one in the very algebra of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from penstock.errors import UsageError

from . import dropout_layernorm as _operators  # noqa: F401  registers the LayerNorm's operators
from . import kernels, tuning
from .arguments import as_rows, check_floating, check_like, check_row, check_shape
from .launch import launch, seen_by_torch

ACTIVATIONS = {None: 0, "gelu_tanh": 1, "relu": 2}
IMPLEMENTATIONS = ("auto", "torch", "triton")
_NAME = "layer_norm_linear"


@dataclass(frozen=True)
class Tile:
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
        return f"{self.m}x{self.n}x{self.k}x{self.stages}x{self.warps}"

    @staticmethod
    def read(name: str) -> Tile:
        """The tile of a name."""
        return Tile(*map(int, name.split("x")))

    def shared_bytes(self, element: int) -> int:
        """Shared memory that the steps on their way take."""
        return (self.m + self.n) * self.k * element * self.stages


# Few, because each is compiled for each combination of epilogues, 1 to 2 s apiece.
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
    size = torch.empty((), dtype=dtype).element_size()
    return [tile for tile in found if tile.shared_bytes(size) <= MOST_SHARED_BYTES]


# ---- Derived vectors ---------------------------------------------------------------------------


class Folded:
    """W @ gamma and W @ beta + bias of one layer, made when first needed and kept while they hold.

    8 bytes a row of W; W itself is not copied. In float32, from the weights as they are stored.
    """

    def __init__(self) -> None:
        self._of: tuple[Any, ...] | None = None
        self._kept: tuple[Tensor, Tensor] | None = None

    def __call__(
        self, gamma: Tensor, beta: Tensor | None, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The two vectors, (N,) float32 each."""
        parts = [part for part in (gamma, beta, weight, bias) if part is not None]
        of = tuple((part.data_ptr(), part._version, part.dtype) for part in parts)
        if self._kept is None or of != self._of:
            self._kept, self._of = fold(gamma, beta, weight, bias), of
        return self._kept


@torch.no_grad()
def fold(
    gamma: Tensor, beta: Tensor | None, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """``W @ gamma`` and ``W @ beta + bias`` in float32, by blocks of rows of W."""
    n = weight.shape[0]
    w_gamma = torch.empty(n, dtype=torch.float32, device=weight.device)
    offset = torch.zeros(n, dtype=torch.float32, device=weight.device)
    for start in range(0, n, 2048):  # a float32 copy of 2048 rows, not of all
        block = weight[start : start + 2048].float()
        torch.mv(block, gamma.float(), out=w_gamma[start : start + 2048])
        if beta is not None:
            offset[start : start + 2048] = torch.mv(block, beta.float())
    if bias is not None:
        offset += bias.float()
    return w_gamma, offset


_folded = WeakTensorKeyDictionary()


def folded_of(weight: Tensor) -> Folded:
    """The vectors that belong to a weight, for as long as the weight lives."""
    found: Folded = _folded.setdefault(weight, Folded())
    return found


# ---- References --------------------------------------------------------------------------------


def activate(x: Tensor, activation: str | None) -> Tensor:
    """One of `ACTIVATIONS`, by torch."""
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    return F.relu(x) if activation == "relu" else x


def reference(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    eps: float,
) -> Tensor:
    """The op in torch's own layers: rounded wherever torch rounds."""
    y = x if gamma is None else F.layer_norm(x, x.shape[-1:], gamma, beta, eps)
    out = activate(F.linear(y, weight, bias), activation)
    return out if residual is None else residual + out


def deferred_reference(
    x: Tensor, gamma: Tensor, w_gamma: Tensor, offset: Tensor, weight: Tensor, eps: float
) -> Tensor:
    """LayerNorm and product by the kernel's algebra, (M, N) in float32; its first tile is 64."""
    wide = x.float()
    centre = wide[:, :64].mean(1, keepdim=True)
    shifted = wide - centre
    mean = shifted.mean(1, keepdim=True)
    variance = (shifted.square().mean(1, keepdim=True) - mean.square()).clamp_min(0.0)
    product = (shifted * gamma.float()).to(x.dtype).float() @ weight.float().T
    return (product - mean * w_gamma) * torch.rsqrt(variance + eps) + offset


# ---- Kernel ------------------------------------------------------------------------------------


def _run_kernel(
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
    from .kernels import gemm

    (m, k), n = x.shape, weight.shape[0]
    out = x.new_empty((m, n))
    if out.numel() == 0:
        return out
    block_m, block_n, block_k, stages, warps = tile
    tf32 = x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32

    def given(tensor: Tensor | None) -> Tensor:
        return x if tensor is None else tensor

    launch(
        gemm.forward,
        (-(-m // block_m) * -(-n // block_n),),
        *(x, weight, given(bias), given(gamma), given(w_gamma), given(residual), out),
        *(m, n, k, x.stride(0), weight.stride(0), weight.stride(1), given(residual).stride(0)),
        eps,
        steps=-(-k // block_k),
        HAS_NORM=gamma is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        ACTIVATION=activation,
        PRECISION="tf32" if tf32 else "ieee",
        EVEN_K=k % block_k == 0,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP_M=8,
        num_stages=stages,
        num_warps=warps,
    )
    return out


@torch.library.triton_op("penstock::layernorm_gemm", mutates_args=())
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
    return _run_kernel(x, gamma, w_gamma, weight, bias, residual, activation, eps, tile)


def kernel_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    gamma: Tensor | None = None,
    w_gamma: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    eps: float = 0.0,
    tile: Tile | None = None,
) -> Tensor:
    """One launch of the kernel on rows, (M, K) to (M, N), without a graph.

    Args:
        x: (M, K).
        weight: (N, K), any strides.
        bias: (N,); with gamma the float32 offset of `fold`.
        gamma: (K,), the LayerNorm's weight; None for no LayerNorm.
        w_gamma: (N,) float32 of `fold`.
        residual: (M, N), added last.
        activation: One of `ACTIVATIONS`.
        eps: Of the LayerNorm.
        tile: None for a fair one.

    Raises:
        EnvironmentProblem: If triton is not installed.
    """
    kernels.require()
    tile = tile or tiles(x.shape[0], x.dtype)[-1]
    shape = [tile.m, tile.n, tile.k, tile.stages, tile.warps]
    run = torch.ops.penstock.layernorm_gemm if seen_by_torch() else _run_kernel
    out: Tensor = run(
        x, gamma, w_gamma, weight, bias, residual, ACTIVATIONS[activation], eps, shape
    )
    return out


# ---- Ways --------------------------------------------------------------------------------------


@dataclass
class Product:
    """One product on rows, and the ways to do it."""

    x: Tensor
    gamma: Tensor | None
    beta: Tensor | None
    weight: Tensor
    bias: Tensor | None
    residual: Tensor | None
    activation: str | None
    eps: float
    folded: Folded | None

    @property
    def key(self) -> tuning.Key:
        (m, k), n = self.x.shape, self.weight.shape[0]
        what = "norm" if self.gamma is not None else "plain"
        if self.residual is not None:
            what += "+residual"
        tf32 = self.x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
        layout = "nk" if self.weight.stride(1) == 1 else "kn"
        dtype = "tf32" if tf32 else str(self.x.dtype).removeprefix("torch.")
        return ("product", what, self.activation or "", layout, dtype, m, n, k)

    def normed(self) -> Tensor:
        if self.gamma is None:
            return self.x
        return F.layer_norm(self.x, self.x.shape[-1:], self.gamma, self.beta, self.eps)

    def plain(self) -> Tensor:
        return reference(
            self.x,
            self.gamma,
            self.beta,
            self.weight,
            self.bias,
            self.residual,
            self.activation,
            self.eps,
        )

    def library_epilogue(self) -> Tensor:
        """The LayerNorm, and the product with the GELU of cuBLASLt's epilogue."""
        assert self.bias is not None
        return torch.ops.aten._addmm_activation(
            self.bias, self.normed(), self.weight.T, use_gelu=True
        )

    def epilogue(self, tile: Tile) -> Tensor:
        """The LayerNorm, and the kernel without one."""
        return kernel_product(
            self.normed(),
            self.weight,
            self.bias,
            residual=self.residual,
            activation=self.activation,
            tile=tile,
        )

    def deferred(self, tile: Tile) -> Tensor:
        """One kernel."""
        assert self.gamma is not None
        fold_ = self.folded or folded_of(self.weight)
        w_gamma, offset = fold_(self.gamma, self.beta, self.weight, self.bias)
        return kernel_product(
            self.x,
            self.weight,
            offset,
            gamma=self.gamma,
            w_gamma=w_gamma,
            residual=self.residual,
            activation=self.activation,
            eps=self.eps,
            tile=tile,
        )

    def ways(self) -> dict[str, Callable[[], Tensor]]:
        """All ways that may be possible; the plain one comes first."""
        found: dict[str, Callable[[], Tensor]] = {"torch": self.plain}
        if self.activation == "gelu_tanh" and self.bias is not None and self.residual is None:
            found["cublaslt"] = self.library_epilogue
        if kernels.usable(self.x.device.type):
            kinds = {"deferred": self.deferred} if self.gamma is not None else {}
            if self.residual is not None or self.activation is not None:
                kinds["epilogue"] = self.epilogue
            for tile in tiles(self.x.shape[0], self.x.dtype):
                for kind, method in kinds.items():
                    found[f"{kind}:{tile.name}"] = lambda m=method, t=tile: m(t)  # type: ignore[misc]
        return found

    def run(self, name: str) -> Tensor:
        """One way by its name."""
        kind, _, tile = name.partition(":")
        if kind == "torch":
            return self.plain()
        if kind == "cublaslt":
            return self.library_epilogue()
        method = self.deferred if kind == "deferred" else self.epilogue
        return method(Tile.read(tile))


def fastest(product: Product, implementation: str = "auto") -> Tensor:
    """Do a product in the way that is known to be fastest, or measure it inside `tuning()`."""
    if implementation == "triton":
        kernels.require()
        tile = tiles(product.x.shape[0], product.x.dtype)[-1]
        return product.deferred(tile) if product.gamma is not None else product.epilogue(tile)
    device = product.x.device
    plain = implementation == "torch" or device.type != "cuda" or product.x.dtype == torch.float64
    if plain or torch.compiler.is_compiling():  # a compiler makes its own epilogues
        return product.plain()
    key = product.key
    name = tuning.known(key, device)
    if name is None:
        measurable = tuning.active() and not torch.cuda.is_current_stream_capturing()
        name = tuning.choose(key, device, product.ways()) if measurable else "torch"
    return product.run(name)


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
        ctx.has_bias, ctx.eps = bias is not None, eps
        return F.linear(y, weight, bias)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, gamma, beta, weight, mean, rstd = ctx.saved_tensors
        dout = dout.contiguous()
        dweight = None
        if ctx.needs_input_grad[3]:
            dweight = dout.T @ normalise(x, gamma, beta, ctx.eps)[0]
        dx, _, dgamma, dbeta, _ = torch.ops.penstock.dropout_layernorm_backward(
            dout @ weight, None, x, gamma, mean, rstd, None, 0.0, False
        )
        dbias = dout.sum(0) if ctx.has_bias else None
        return dx, dgamma, dbeta if beta is not None else None, dweight, dbias, None


def normalise(
    x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm of rows, its means and its 1 / sigma; called again it gives the same bits."""
    y, _, mean, rstd = torch.ops.penstock.dropout_layernorm(
        None, x, None, gamma, beta, None, 0.0, eps
    )
    return y, mean, rstd


class _ResidualLinear(torch.autograd.Function):
    """``residual + x @ W.T + bias``; keeps x, and not the sum's parts."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return fastest(Product(x, None, None, weight, bias, residual, None, 0.0, None), "auto")

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        dbias = dout.sum(0) if ctx.has_bias else None
        dweight = dout.T @ x if ctx.needs_input_grad[1] else None
        return dout @ weight, dweight, dbias, dout


def needs_graph(*tensors: Tensor | None) -> bool:
    """Whether an op on these has to be differentiable."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


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
    _check_product(_NAME, x, weight, bias)
    check_like(_NAME, x, norm_weight=norm_weight, norm_bias=norm_bias)
    for name, vector in (("norm_weight", norm_weight), ("norm_bias", norm_bias)):
        check_shape(_NAME, name, vector, (x.shape[-1],))
    check_row(_NAME, x)
    flat = as_rows(x)
    if needs_graph(x, norm_weight, norm_bias, weight, bias):
        out = _LayerNormLinear.apply(flat, norm_weight, norm_bias, weight, bias, eps)
        out = activate(out, activation)
    else:
        out = fastest(
            Product(flat, norm_weight, norm_bias, weight, bias, None, activation, eps, folded),
            implementation,
        )
    return out.view(*x.shape[:-1], weight.shape[0])


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
    op = "residual_linear"
    _check_names(None, implementation)
    _check_product(op, x, weight, bias)
    check_like(op, x, residual=residual)
    check_floating(op, "residual", residual)
    check_shape(op, "residual", residual, (*x.shape[:-1], weight.shape[0]))
    flat, kept = as_rows(x), as_rows(residual)
    if needs_graph(x, weight, bias, residual):
        out = _ResidualLinear.apply(flat, weight, bias, kept)
    else:
        product = Product(flat, None, None, weight, bias, kept, None, 0.0, None)
        out = fastest(product, implementation)
    return out.view(residual.shape)


def _check_names(activation: str | None, implementation: str) -> None:
    if activation not in ACTIVATIONS:
        raise UsageError(f"activation {activation!r} is unknown", remedy="None, gelu_tanh or relu")
    if implementation not in IMPLEMENTATIONS:
        raise UsageError(
            f"implementation {implementation!r} is unknown", remedy=", ".join(IMPLEMENTATIONS)
        )


def _check_product(op: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_floating(op, "x", x)
    check_like(op, x, weight=weight, bias=bias)
    if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
        raise UsageError(
            f"{op}: weight has shape {tuple(weight.shape)}", remedy=f"(N, {x.shape[-1]})"
        )
    check_shape(op, "bias", bias, (weight.shape[0],))

