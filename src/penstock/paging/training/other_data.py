# SPDX-License-Identifier: Apache-2.0
"""Weights that have been given other data, or whose place another tensor has taken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from penstock.errors import UsageError

from ..blocks import Block, Slot
from ..store import BlockStore


class OtherData:
    """Looks for such weights of one model.

    Args:
        store: Of its blocks, which takes other data in.
        touching: Around work that reads and writes blocks.
        has_updated: Whether this step's backward has updated a parameter.
    """

    def __init__(
        self,
        store: BlockStore,
        touching: Callable[[list[Block]], AbstractContextManager[None]],
        has_updated: Callable[[torch.Tensor], bool],
    ) -> None:
        self._store = store
        self._touching = touching
        self._has_updated = has_updated
        self._addresses: list[tuple[Block, Slot, int]] = [
            (block, slot, slot.tensor.data_ptr())
            for block, slot in store.slots()
            if slot.is_parameter
        ]

    def look(self) -> None:
        """Take in what can be.

        Raises:
            UsageError: If something cannot.
        """
        for block, slot, address in self._addresses:
            here = dict.get(slot.table, slot.key)
            if here is slot.tensor and here.data_ptr() == address:
                continue
            with torch.no_grad(), self._touching([block]):
                given = here is slot.tensor and not self._has_updated(slot.tensor)
                if not given or not self._store.take_in(block, slot):
                    raise UsageError(
                        f"{slot.name} was replaced, moved or converted after attach_training()",
                        remedy="weight.copy_(x) for weight.data = x; else detach(), change it or "
                        "call functional_call(), attach_training() again",
                    )
