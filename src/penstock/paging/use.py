# SPDX-License-Identifier: Apache-2.0
"""A use of blocks: what one module touches while its forward runs, or one read of a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .blocks import Block
from .split_rows import SplitRows
from .tables import Table

NO_USE = -1


@dataclass(slots=True, eq=False)
class Use:
    """What one module touches, or one read.

    Attributes:
        name: The module's path, or the tensor's.
        blocks: The paged blocks.
        number: The pager's; NO_USE of a module that owns none, within which reads last.
        tables: Those of the module, whose reads the use covers.
        tensors: Those of the blocks whose uses are not taken to write them.
        is_read: It is a read.
        pages: The addresses of its pages.
        pieces: Address and bytes of parts of other blocks.
        split: These blocks' rows, to be entered while it runs.
        whole: The module's use that this is a part of; None where it is all of it.
        joint: The use that this one may be a part of, with others.
        parts: Those that this one is made of.
        missing: Those of them that have not run since it began.
        open: How often it is running.
        runs: How often all parts have run.
        closed: Calls of the parts are not looked at any more.
    """

    name: str
    blocks: frozenset[Block]
    number: int = NO_USE
    tables: list[Table] = field(default_factory=list)
    tensors: tuple[torch.Tensor, ...] = ()
    is_read: bool = False
    pages: frozenset[int] = frozenset()
    pieces: tuple[tuple[int, int], ...] = ()
    split: list[SplitRows] = field(default_factory=list)
    whole: Use | None = None
    joint: Use | None = None
    parts: list[Use] = field(default_factory=list)
    missing: set[Use] = field(default_factory=set)
    open: int = 0
    runs: int = 0
    closed: bool = False

    def enter(self) -> None:
        """It begins: rows that are on the device are read there."""
        for rows in self.split:
            rows.enter()

    def leave(self) -> None:
        """It is over."""
        for rows in self.split:
            rows.leave()

    def versions(self) -> list[int]:
        """Of each tensor, a number that grows when it is changed in place."""
        return [tensor._version for tensor in self.tensors]

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks."""
        return sum(block.nbytes for block in self.blocks)


def ancestors(name: str) -> list[str]:
    """The paths of the modules that the one of this path is within."""
    parts = name.split(".") if name else []
    return [".".join(parts[:count]) for count in range(len(parts))]
