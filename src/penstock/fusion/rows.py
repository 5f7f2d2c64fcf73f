# SPDX-License-Identifier: Apache-2.0
"""The row kernels from the host's side: what is decided once for a layout, and what at each call.

Small models are bound by the host, so that checking arguments, choosing a block and finding a
compiled kernel, 25 us together, are done once for each layout of arguments (their shapes, strides,
dtypes and devices), and remembered. Where torch has to see operators nothing is remembered, for
shapes may be symbols there. Called by the ops of this package; `dropout_layernorm` says what they
compute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from penstock.errors import UsageError

from . import kernels, rows_reference
from .arguments import Layouts, as_rows, check_floating, check_like, check_row, check_shape, layout
from .columns import ColumnSums
from .guard import autocast_of
from .launch import Start, device_programs
from .philox import threshold

_NAME = "dropout_layernorm"
Found = tuple[Tensor | None, ...]


def check(
    x: Tensor | None,
    residual: Tensor | None,
    x_bias: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    mixed: bool = False,
) -> Tensor:
    """The first of x and residual, if all fit together; `mixed` as in `check_like`.

    Raises:
        UsageError: If they do not.
    """
    first = x if x is not None else residual
    if first is None:
        raise UsageError(f"{_NAME}: neither x nor residual", remedy="at least one of them")
    vectors = {"weight": weight, "bias": bias, "x_bias": x_bias}
    check_like(_NAME, first, mixed=mixed, residual=residual, **vectors)
    for name, tensor in {"x": x, "residual": residual, **vectors}.items():
        if tensor is not None:
            check_floating(_NAME, name, tensor)
    check_shape(_NAME, tuple(first.shape), residual=residual)
    check_shape(_NAME, (first.shape[-1],), **vectors)
    if x is None and x_bias is not None:
        raise UsageError(f"{_NAME}: x_bias without x", remedy="x_bias=None")
    check_row(_NAME, first)
    return first


def _on_kernel(tensor: Tensor) -> bool:
    return tensor.dtype != torch.float64 and kernels.usable(tensor.device.type)


def _block(columns: int) -> tuple[int, int]:
    """Columns that a program spans, and its warps: 16 elements a thread, as wide loads want."""
    block = max(16, 1 << (columns - 1).bit_length())
    return block, max(1, min(16, block // 512))


def _unless_dense(tensor: Tensor | None) -> Tensor | None:
    """Rows of what is not rows side by side already: a view, or a copy."""
    if tensor is None or tensor.ndim == 2 or tensor.is_contiguous():
        return tensor
    return as_rows(tensor)


def _stride(tensor: Tensor) -> int:
    return int(tensor.stride(0)) if tensor.ndim == 2 else int(tensor.shape[-1])


def _like(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _dtype(tensor: Tensor | None) -> torch.dtype | None:
    return None if tensor is None else tensor.dtype


class Forward:
    """Forward for arguments of one layout; see `dropout_layernorm.dropout_add_layer_norm`.

    Args are those of the first call, checked; a call takes tensors alone. Without `statistics` it
    returns no mean and rstd, as nobody needs them where there is no backward.
    """

    def __init__(
        self,
        x: Tensor | None,
        residual: Tensor | None,
        x_bias: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        seed: Tensor | None,
        p: float,
        eps: float,
        *,
        statistics: bool = True,
    ) -> None:
        first = x if x is not None else residual
        assert first is not None
        self._p, self._eps, self._statistics = p, eps, statistics
        self._on_kernel = _on_kernel(first) and first.numel() > 0
        # Where dtypes differ, as under autocast, results have the wider one of x and the stream.
        self._dtype = None
        if x is not None and residual is not None and x.dtype != residual.dtype:
            self._dtype = torch.promote_types(x.dtype, residual.dtype)
        self._dense = all(t is None or _unless_dense(t) is t for t in (x, residual))
        if not self._on_kernel:
            return
        from .kernels import row

        n = int(first.shape[-1])  # a kernel is for one width
        self._rows = first.numel() // n
        block, warps = _block(n)
        strides = [
            0 if t is None else _stride(t) for t in (_unless_dense(x), _unless_dense(residual))
        ]
        self.start = Start(
            row.forward,
            self._rows,
            (*strides, n, eps, threshold(p), 1.0 / (1.0 - p)),
            {
                "HAS_X": x is not None,
                "HAS_X_BIAS": x_bias is not None,
                "HAS_RESIDUAL": residual is not None,
                "HAS_DROPOUT": seed is not None,
                "HAS_NORM": weight is not None,
                "HAS_NORM_BIAS": bias is not None,
                "STORE_Z": x is not None,
                "STORE_STATISTICS": statistics,
                "BLOCK": block,
            },
            device=first.device,
            warps=warps,
        )

    def __call__(self, *tensors: Tensor | None, traced: bool = False) -> Found:
        """y, z, mean and rstd; None for what does not apply, see `rows_reference.forward`."""
        x, residual, x_bias, weight, bias, seed = tensors
        if not self._on_kernel:
            found = rows_reference.forward(*tensors, p=self._p, eps=self._eps)
            return found if self._statistics else (*found[:2], None, None)
        first = x if x is not None else residual
        assert first is not None
        y = mean = rstd = None
        if weight is not None:
            y = _like(first, self._dtype)
            if self._statistics:
                mean = torch.empty(self._rows, dtype=torch.float32, device=first.device)
                rstd = torch.empty_like(mean)
        z = _like(first, self._dtype) if x is not None else None
        if not self._dense:
            x, residual = _unless_dense(x), _unless_dense(residual)
        parts = (x, x_bias, residual, weight, bias, z, y, mean, rstd, seed)
        # What the kernel does not look at is anything.
        given = [first if part is None else part for part in parts]
        (self.start.traced if traced else self.start)(*given)
        return y, z, mean, rstd


class Backward:
    """Backward for arguments of one layout; dy and dz are contiguous.

    Args are those of the first call; a call takes tensors alone. With `normalised` it gives what
    the LayerNorm gave as well, for who did not keep it: a row is in registers here.
    """

    def __init__(
        self,
        dy: Tensor | None,
        dz: Tensor | None,
        z: Tensor,
        weight: Tensor | None,
        mean: Tensor | None,
        rstd: Tensor | None,
        seed: Tensor | None,
        p: float,
        x_bias: bool,
        bias: Tensor | None = None,
        *,
        normalised: bool = False,
    ) -> None:
        self._p, self._x_bias, self._normalised = p, x_bias, normalised
        self._on_kernel = _on_kernel(z) and z.numel() > 0
        self._dense = _unless_dense(z) is z
        if not self._on_kernel:
            return
        from .kernels import row

        n = int(z.shape[-1])
        rows = z.numel() // n
        block, _ = _block(n)
        programs = min(rows, device_programs(z.device, per_processor=4 if block <= 2048 else 2))
        vectors = 2 * (weight is not None) + x_bias
        self._sums = None
        if vectors:
            dtype = z.dtype if weight is None else weight.dtype
            self._sums = ColumnSums(vectors, programs, n, dtype=dtype, device=z.device)
        flat = _unless_dense(z)
        assert flat is not None
        self.start = Start(
            row.backward,
            programs,
            (_stride(flat), rows, n, threshold(p), 1.0 / (1.0 - p)),
            {
                "HAS_DZ": dz is not None,
                "HAS_DROPOUT": seed is not None,
                "HAS_NORM": weight is not None,
                "HAS_X_BIAS": x_bias,
                "HAS_NORM_BIAS": bias is not None,
                "STORE_Y": normalised,
                "BLOCK": block,
            },
            device=z.device,
            # Half as many elements a thread as in forward: with the column sums 16 take 165
            # registers, and one thread block of 8 warps would have a processor to itself.
            warps=max(1, min(16, block // 256)),
            # So that as many programs as there are run at a time: with y the compiler takes 72, and
            # 82 in blocks of 4,096. 64 do without spilling (ptxas), but not in longer blocks, nor
            # with dropout and the sum for x_bias, which nobody asks for together with y.
            registers=64 if normalised and block <= 4096 else None,
        )

    def __call__(self, *tensors: Any, traced: bool = False) -> Found:
        """Gradients as `rows_reference.backward` gives them, and y or None."""
        dy, dz, z, weight, mean, rstd, seed, bias = tensors
        if not self._on_kernel:
            found = rows_reference.backward(*tensors[:7], p=self._p, x_bias=self._x_bias)
            of = (weight, mean, rstd, bias)
            return *found, rows_reference.normalised(z, *of) if self._normalised else None
        norm = weight is not None
        dresidual = _like(z) if norm else None
        dx = _like(z) if seed is not None else None
        y = _like(z) if self._normalised else None
        partials = None if self._sums is None else self._sums.partials()
        kept = z if self._dense else as_rows(z)
        parts = (dy, dz, kept, weight, mean, rstd, seed, bias, dresidual, dx, y, partials)
        given = [z if part is None else part for part in parts]
        (self.start.traced if traced else self.start)(*given)
        if self._sums is None or partials is None:
            return dresidual, dx, None, None, None, y
        sums = self._sums(partials, traced=traced)
        return (
            *(dresidual, dx),
            *(sums[:2] if norm else (None, None)),
            sums[-1] if self._x_bias else None,
            y,
        )


FORWARDS: Layouts[Forward] = Layouts()
BACKWARDS: Layouts[Backward] = Layouts()


def forward(*arguments: Any, statistics: bool = True) -> Found:
    """`Forward`, made or remembered, on its arguments, which may have any leading dimensions.

    Raises:
        UsageError: If they do not fit together.
    """
    x, residual, x_bias, weight, bias, seed, p, eps = arguments
    first = x if x is not None else residual
    mixed = first is not None and autocast_of(first) is not None  # checks are others there
    tensors = (x, residual, x_bias, weight, bias)
    key = (*map(layout, tensors), seed is None, p, eps, statistics, mixed)
    found = FORWARDS.get(key)
    if found is None:
        check(*tensors)
        found = FORWARDS.keep(key, Forward(*arguments, statistics=statistics))
    return found(x, residual, x_bias, weight, bias, seed)


def backward(*arguments: Any, bias: Tensor | None = None, normalised: bool = False) -> Found:
    """`Backward`, made or remembered, on its arguments, of which dy and dz are contiguous."""
    dy, dz, z, weight, mean, rstd, seed, p, x_bias = arguments
    wanted = normalised, normalised and bias is None
    # Their dtypes, which under autocast are not that of z, decide the kernel.
    key = (layout(z), *map(_dtype, (dy, dz, weight, bias)), seed is None, p, x_bias, *wanted)
    found = BACKWARDS.get(key)
    if found is None:
        made = Backward(
            *(dy, dz, z, weight, mean, rstd, seed), p, x_bias, bias, normalised=normalised
        )
        found = BACKWARDS.keep(key, made)
    return found(dy, dz, z, weight, mean, rstd, seed, bias)
