# SPDX-License-Identifier: Apache-2.0
"""What state_dict() gives of a tensor that has several names, as tied weights have.

It is one copy, as it is one tensor in the model's own state_dict(): libraries that save it go by
that, and the host holds it once. The hook of each module sees the dictionary as far as it is made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from .blocks import Block, Slot
from .dlpack import bytes_of
from .store import BlockStore


class SavedCopies:
    """Copies of what is in a store's blocks.

    Args:
        store: It.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        # By what they are of: the name under which each was given first, and the copy.
        self._given: dict[int, tuple[str, Callable[[], Any]]] = {}

    def put(self, state: dict[str, Any], name: str, block: Block, slot: Slot) -> None:
        """A copy of what is in a slot, into a dictionary under this name.

        Args:
            state: The dictionary, in which another name may have a copy already.
            name: The name.
            block: The slot's block, whose host copy is current.
            slot: The slot.
        """
        copy = self._store.copy_of(block, slot)
        first, given = self._given.get(id(slot.tensor), (name, lambda: None))
        before = state.get(first) if first != name else None
        # The caller may have the dictionary from before, or have changed what is in it.
        if before is None or before is not given() or not _same_bytes(before, copy):
            self._given[id(slot.tensor)] = name, weakref.ref(copy)
        else:
            copy = before.detach()
        state[name] = copy


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.stride() != other.stride():
        return False
    return torch.equal(bytes_of(one), bytes_of(other))
