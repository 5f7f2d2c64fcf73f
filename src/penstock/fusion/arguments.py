# SPDX-License-Identifier: Apache-2.0
"""What the fused ops refuse, and the one layout that their kernels take.

Invariant: a tensor that passed has the dtype and device of the first, and its columns lie side by
side; so a kernel needs one stride, and the reference and the kernel refuse the same things.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from penstock.errors import UsageError

from .guard import autocast_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
T = TypeVar("T")
# A row has to fit into the registers of one thread block.
MOST_ROW_BYTES = 64 * 1024


def check_floating(op: str, name: str, tensor: Tensor) -> None:
    """Refuse a dtype that no kernel computes in, and columns that do not lie side by side.

    Raises:
        UsageError: With the op's and the tensor's name.
    """
    if tensor.dtype not in DTYPES:
        raise UsageError(f"{op}: {name} is {tensor.dtype}", remedy="float32, bfloat16 or float16")
    if tensor.ndim == 0 or (tensor.stride(-1) != 1 and tensor.shape[-1] > 1):
        raise UsageError(
            f"{op}: the last dimension of {name} is not contiguous (stride "
            f"{tensor.stride(-1) if tensor.ndim else 0})",
            remedy=f"{name}.contiguous()",
        )


def check_like(op: str, first: Tensor, *, mixed: bool = False, **others: Tensor | None) -> None:
    """Refuse tensors of another dtype or device than the first.

    Under autocast dtypes differ as a matter of course, of a stream, of weights, of results, and
    where the caller knows of it and says that they may be `mixed`.

    Raises:
        UsageError: With both dtypes or devices.
    """
    mixed = mixed or autocast_of(first) is not None
    for name, tensor in others.items():
        if tensor is None:
            continue
        if tensor.dtype != first.dtype and not mixed:
            raise UsageError(
                f"{op}: {name} is {tensor.dtype}, the input {first.dtype}",
                remedy=f"{name}.to({first.dtype})",
            )
        if tensor.device != first.device:
            raise UsageError(
                f"{op}: {name} is on {tensor.device}, the input on {first.device}",
                remedy="one device",
            )


def check_shape(op: str, wanted: tuple[int, ...], **tensors: Tensor | None) -> None:
    """Refuse tensors of another shape.

    Raises:
        UsageError: With both shapes.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tuple(tensor.shape) != wanted:
            shape = tuple(tensor.shape)
            raise UsageError(f"{op}: {name} has shape {shape}", remedy=f"shape {wanted}")


def check_row(op: str, tensor: Tensor) -> None:
    """Refuse rows beyond what a thread block holds.

    Raises:
        UsageError: If a row has more than `MOST_ROW_BYTES`.
    """
    row = tensor.shape[-1] * tensor.element_size()
    if row > MOST_ROW_BYTES:
        raise UsageError(
            f"{op}: a row of {row} bytes is more than {MOST_ROW_BYTES}", remedy="torch's own ops"
        )


def as_rows(tensor: Tensor) -> Tensor:
    """All dimensions but the last as one: a view where strides allow it, else a copy."""
    return tensor.reshape(-1, tensor.shape[-1])


def layout(tensor: Tensor | None) -> tuple[Any, ...] | None:
    """What checks and choices depend on; two tensors with the same one are dealt with alike."""
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


class Layouts(dict[Any, T]):
    """What was found out for each layout of an op's arguments, so that it is done once.

    Bounded, for a program may meet any number of lengths: full, it starts anew.
    """

    MOST = 4096

    def keep(self, key: Any, value: T) -> T:
        """Remember `value`, and return it."""
        if len(self) >= self.MOST:
            self.clear()
        self[key] = value
        return value


_passed: Layouts[bool] = Layouts()


def check_once(check: Callable[..., None], *arguments: Any) -> None:
    """Run a check of tensors, and of what else it takes, unless such ones passed it before.

    Not remembered where a compiler looks, for shapes may be symbols there.
    """
    if torch.compiler.is_compiling():
        return check(*arguments)
    mixed = autocast_of(next(part for part in arguments if isinstance(part, Tensor)))
    key = (check, mixed, *(layout(a) if isinstance(a, Tensor) else a for a in arguments))
    if key not in _passed:
        check(*arguments)
        _passed.keep(key, True)
    return None
