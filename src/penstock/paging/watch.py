# SPDX-License-Identifier: Apache-2.0
"""Finds accesses that neither module ownership nor reads of parameters tell.

A program may keep tensors of a model in a list or a closure and use them where no module is asked
for them. While the mode is entered, every operator's tensors are compared with the blocks; an
access to a block that no running use covers is told before the operator runs, and so is a write.
A view that was made outside forward lies at the host copy, where forward does not look: an operator
that changes it, or reads it where forward has changed the block, is refused.
A dispatch mode costs 2 to 6 us an operator, which is why it is for passes that are new only, unless
safety is "strict".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from penstock.errors import UsageError

from .blocks import Block
from .modes import PassMode, run
from .wrappers import plain_leaves

if TYPE_CHECKING:
    from .on_host import OnHost

Part = TypeVar("Part")
_PLAIN = torch.Tensor.__torch_dispatch__
# What `weight.data = x` asks, seen under inference_mode() alone: it touches the bytes of neither.
_MAY_TAKE = torch.ops.aten._has_compatible_shallow_copy_type.default
WATCHED = 2  # passes of a kind: what the first one keeps, such as views, the second one uses


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor has a storage of its own, in memory."""
    return (
        not tensor.is_meta
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not tensor._is_zerotensor()  # what is known to be zero lies nowhere
        and type(tensor).__torch_dispatch__ is _PLAIN
        and tensor.layout is torch.strided
    )


def block_of(value: Any, blocks: Mapping[int, Part]) -> Part | None:
    """The block that a tensor lies in; None of anything else.

    Args:
        value: Anything.
        blocks: Blocks, or what is like them, by the address of their device bytes.
    """
    if not isinstance(value, torch.Tensor) or not has_storage(value):
        return None
    return blocks.get(value.untyped_storage().data_ptr())


class AccessWatch(PassMode):
    """Calls `missed(block, tensor)` before an operator that touches a block not covered.

    Args:
        blocks: Paged blocks by the address of their device bytes.
        covered: Whether a running use covers the block.
        missed: Brings it in; called before the operator runs.
        writes: Called with a block that the operator changes in place.
        on_host: The blocks that are given at their host copies; None where none ever is.
    """

    def __init__(
        self,
        blocks: dict[int, Block],
        covered: Callable[[Block], bool],
        missed: Callable[[Block, torch.Tensor], None],
        writes: Callable[[Block], None] | None = None,
        on_host: OnHost | None = None,
    ) -> None:
        super().__init__()
        self._blocks = blocks
        self._covered = covered
        self._missed = missed
        self._writes = writes
        self._on_host = on_host

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.over or func is _MAY_TAKE:
            return run(func, args, kwargs)
        for part in plain_leaves((args, kwargs)):
            block = block_of(part, self._blocks)
            if block is None:
                self._refuse_left(part)
            elif not self._covered(block):
                self._missed(block, part)
        at_host: list[Block] = []  # what the operator changes there
        schema = getattr(func, "_schema", None)  # higher-order operators have none
        if self._writes is not None and schema is not None and schema.is_mutable:
            named = (kwargs.get(each.name) for each in schema.arguments[len(args) :])
            for argument, value in zip(schema.arguments, (*args, *named), strict=False):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                for part in plain_leaves(value):
                    if written := block_of(part, self._blocks):
                        written.changed = True
                        self._writes(written)
                    elif given := self._on_host and self._on_host.given_at(part):
                        at_host.append(given)
                    else:
                        self._refuse_left(part, changes=True)
        if self._on_host and at_host:
            with self._on_host.changing(at_host):
                return run(func, args, kwargs)
        return run(func, args, kwargs)

    def _refuse_left(self, value: Any, *, changes: bool = False) -> None:
        block = self._on_host.left_at(value) if self._on_host else None
        if block is None or not (changes or block.changed):
            return
        raise UsageError(
            f"forward {'changes' if changes else 'reads'} a view of {block.name} that was made "
            "outside it: the view lies at the host copy, and what forward changes at the device",
            remedy="make the view within forward",
        )
