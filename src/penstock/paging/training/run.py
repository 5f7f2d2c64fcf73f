# SPDX-License-Identifier: Apache-2.0
"""A use of forward or backward, and what the program itself has written in it.

Embeddings that renormalise, layers that normalise their weights, averages that follow others, hooks
that update a weight in backward: such a change shows in the versions of tensors, and where
operators are watched by whatever way it came.
"""

from __future__ import annotations

from collections.abc import Container

import torch

from ..blocks import Block
from .units import Unit


class Run:
    """A use that is under way.

    Attributes:
        unit: Whose.
        use: Its number.
        own: Whether it is the unit's own, and not of what was found missing there.
    """

    __slots__ = ("_tensors", "_versions", "own", "unit", "use")

    def __init__(self, unit: Unit, use: int, *, own: bool) -> None:
        self.unit = unit
        self.use = use
        self.own = own
        self._tensors = unit.unwritten if own else []
        self._versions = [tensor._version for tensor in self._tensors]

    def wrote(self, seen: set[Block], updated: Container[torch.Tensor]) -> list[Block]:
        """The unit's blocks that were changed since it began, known as written only from now on.

        Args:
            seen: Those that an operator was seen to change.
            updated: Parameters whose change was an update's, which has written them.
        """
        now = [tensor._version for tensor in self._tensors]
        if now == self._versions and not seen:
            return []
        versions = zip(self._tensors, self._versions, now, strict=True)
        changed = {id(x) for x, before, after in versions if after != before and x not in updated}
        written = [
            block
            for block in self.unit.blocks
            if not block.written
            and (block in seen or any(id(slot.tensor) in changed for slot in block.slots))
        ]
        for block in written:
            block.written = True
        return written
