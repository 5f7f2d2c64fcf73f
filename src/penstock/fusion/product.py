# SPDX-License-Identifier: Apache-2.0
"""One matrix product with what stands around it, and the ways to do it.

    out = act(LayerNorm(x) @ W.T + bias) + residual

The ways are a library product between torch's own layers, one with the library's own GELU, the
kernel of `kernels.gemm` behind a LayerNorm, and the kernel alone, with several tiles each. Which
runs is what `tuning` measured for the shape, and the library where nothing was measured. All on
rows, without a graph; the plain way is their reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from . import kernels, tuning
from .activation import activate
from .arguments import Layouts, as_rows, check_once, layout
from .guard import autocast_of, needs_graph
from .launch import seen_by_torch
from .product_kernel import ACTIVATIONS, Ready, Tile, kernel_product, tiles

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
        if any(part.is_inference() for part in parts):  # nothing tells when such a one has changed
            return fold(gamma, beta, weight, bias)
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


# ---- Ways --------------------------------------------------------------------------------------


@dataclass(slots=True)
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
    folded: Folded | None = None

    @property
    def key(self) -> tuning.Key:
        """What a measured choice holds for."""
        (m, k), n = self.x.shape, self.weight.shape[0]
        what = "norm" if self.gamma is not None else "plain"
        if self.residual is not None:
            what += "+residual"
        tf32 = self.x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
        layout = "nk" if self.weight.stride(1) == 1 else "kn"
        dtype = "tf32" if tf32 else str(self.x.dtype).removeprefix("torch.")
        return ("product", what, self.activation or "", layout, dtype, m, n, k)

    def normed(self) -> Tensor:
        """What the product takes: x, behind the LayerNorm where there is one."""
        if self.gamma is None:
            return self.x
        return F.layer_norm(self.x, self.x.shape[-1:], self.gamma, self.beta, self.eps)

    def derived(self) -> tuple[Tensor, Tensor]:
        """What the kernel takes of the LayerNorm beside gamma; see `fold`."""
        assert self.gamma is not None
        fold_ = self.folded or folded_of(self.weight)
        return fold_(self.gamma, self.beta, self.weight, self.bias)

    def plain(self) -> Tensor:
        """Torch's own layers, rounded wherever torch rounds; of any leading dimensions."""
        out = F.linear(self.normed(), self.weight, self.bias)
        # Without a graph the product is nobody else's. With 8 x 1,024 tokens a second inner tensor
        # of the feed-forward part would be 256 MiB of 6.7B.
        own = not needs_graph(out, self.residual) and not torch.compiler.is_compiling()
        out = activate(out, self.activation, inplace=own)
        if self.residual is None:
            return out
        in_place = own and out.dtype == self.residual.dtype
        return out.add_(self.residual) if in_place else self.residual + out

    def library_epilogue(self) -> Tensor:
        """The LayerNorm, and the product with the GELU of cuBLASLt's epilogue."""
        assert self.bias is not None
        return torch.ops.aten._addmm_activation(
            self.bias, self.normed(), self.weight.T, use_gelu=True
        )

    def epilogue(self, tile: Tile) -> Tensor:
        """The LayerNorm, and the kernel without one."""
        return self._kernel(tile, self.normed(), None, None, bias=self.bias)

    def deferred(self, tile: Tile) -> Tensor:
        """One kernel."""
        w_gamma, offset = self.derived()
        return self._kernel(tile, self.x, self.gamma, w_gamma, bias=offset)

    def _kernel(self, tile: Tile, x: Tensor, *norm: Tensor | None, bias: Tensor | None) -> Tensor:
        how = (ACTIVATIONS[self.activation], self.eps, list(tile))
        return kernel_product(x, *norm, self.weight, bias, self.residual, *how)

    def again(self, ready: Ready) -> Tensor:
        """`epilogue` or `deferred` by a kernel that is ready, with any leading dimensions."""
        if ready.norm:
            w_gamma, offset = self.derived()
            return ready(self.x, self.weight, offset, self.gamma, w_gamma, self.residual)
        return ready(self.normed(), self.weight, self.bias, None, None, self.residual)

    def ways(self) -> dict[str, Callable[[], Tensor]]:
        """All ways that may be possible; the plain one comes first."""
        found: dict[str, Callable[[], Tensor]] = {"torch": self.plain}
        # The library's epilogue is for two-byte dtypes; elsewhere torch takes the plain product.
        half = self.x.element_size() == 2
        gelu = self.activation == "gelu_tanh" and self.residual is None
        if half and gelu and self.bias is not None:
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


# For arguments that passed their checks: the state of `tuning` that a way was looked up in, the
# way, and its kernel.
WAYS: Layouts[tuple[int, str, Ready | None]] = Layouts()


def _ready(product: Product, name: str, x: Tensor, residual: Tensor | None) -> Ready | None:
    """What does all further products of this layout; None where a way is not the kernel's."""
    kind, _, tile = name.partition(":")
    sides = (x,) if residual is None else (x, residual)
    # Of any strides a side is rows already, or not at all.
    as_it_is = all(side.numel() and (side.ndim == 2 or side.is_contiguous()) for side in sides)
    if not tile or not as_it_is or product.weight.numel() == 0:
        return None
    deferred = kind == "deferred"
    return Ready(
        *(product.x, product.weight, product.residual),
        (*x.shape[:-1], product.weight.shape[0]),
        *(ACTIVATIONS[product.activation], product.eps, list(Tile.read(tile))),
        norm=deferred,
        bias=deferred or product.bias is not None,
    )


def compute(
    check: Callable[..., None] | None,
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    activation: str | None = None,
    eps: float = 0.0,
    *,
    folded: Folded | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Do a product, of x (..., K) to (..., N), in the way known to be fastest.

    Inside `tuning.measuring()` the way is found. Looked up once for a layout of arguments.

    Args:
        check: Refuses tensors that do not fit, called as ``check(x, gamma, beta, weight, bias,
            residual)``; None where that was done.
        x: (..., K).
        gamma: (K,), the LayerNorm's weight; None for no LayerNorm.
        beta: (K,), its bias.
        weight: (N, K), any strides.
        bias: (N,).
        residual: (..., N), added last.
        activation: One of `ACTIVATIONS`.
        eps: Of the LayerNorm.
        folded: Where vectors derived from the weight are kept; None keeps them by weight.
        implementation: "auto", "torch" or "triton".
    """
    tensors = (x, gamma, beta, weight, bias, residual)
    if autocast_of(x) is not None:  # each part in the precision that it has there
        if check is not None:
            check_once(check, *tensors)
        return Product(*tensors, activation, eps).plain()
    tf32 = x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    key, name = None, None
    if not torch.compiler.is_compiling():
        key = (check, *map(layout, tensors), activation, eps, implementation, tf32)
        changes, name, ready = WAYS.get(key, (-1, None, None))
        name = name if changes == tuning.changes() else None
        if name is not None and ready is not None and not seen_by_torch():
            return Product(*tensors, activation, eps, folded).again(ready)
    if name is None and check is not None:
        check(*tensors)
    if name == "torch":
        return Product(*tensors, activation, eps).plain()
    rows = None if residual is None else as_rows(residual)
    product = Product(as_rows(x), gamma, beta, weight, bias, rows, activation, eps, folded)
    if name is None:
        name = way_of(product, implementation)
        if key is not None and not tuning.active():
            WAYS.keep(key, (tuning.changes(), name, _ready(product, name, x, residual)))
    out = product.run(name)
    return out if x.ndim == 2 else out.view(*x.shape[:-1], out.shape[1])


def way_of(product: Product, implementation: str) -> str:
    """The name of the way to do a product."""
    if implementation == "triton":
        kernels.require()
        tile = tiles(product.x.shape[0], product.x.dtype)[-1].name
        return f"deferred:{tile}" if product.gamma is not None else f"epilogue:{tile}"
    device = product.x.device
    plain = implementation == "torch" or device.type != "cuda" or product.x.dtype == torch.float64
    if plain or torch.compiler.is_compiling():  # a compiler makes its own epilogues
        return "torch"
    key = product.key
    name = tuning.known(key, device)
    if name is None:
        measurable = tuning.active() and not torch.cuda.is_current_stream_capturing()
        name = tuning.choose(key, device, product.ways()) if measurable else "torch"
    return name
