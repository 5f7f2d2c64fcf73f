# SPDX-License-Identifier: Apache-2.0
"""A use of blocks: what one module touches while its forward runs, or one read of a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .blocks import SMALL_BLOCK, Block
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
    """

    name: str
    blocks: frozenset[Block]
    number: int = NO_USE
    tables: list[Table] = field(default_factory=list)
    tensors: tuple[torch.Tensor, ...] = ()
    is_read: bool = False
    pages: frozenset[int] = frozenset()

    def version(self) -> int:
        """A number that grows when a tensor is changed in place."""
        return sum([tensor._version for tensor in self.tensors])

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks."""
        return sum(block.nbytes for block in self.blocks)


def gather_of(module: nn.Module, use: Use) -> Use | None:
    """What stands for a module's use where it reads rows of its table at the host copy.

    An embedding whose table is another module's matrix, such as a tied head: its rows cross the
    link alone, and the pages may come for the other module, not before.
    """
    is_table = isinstance(module, nn.Embedding) and module.max_norm is None
    if not is_table or len(use.blocks) != 1 or use.nbytes <= SMALL_BLOCK:
        return None
    users = [slot.module for block in use.blocks for slot in block.slots]
    if all(isinstance(user, nn.Embedding) for user in users):
        return None
    return Use(use.name, use.blocks, tables=use.tables)


def reads_few_rows(module: Any, args: Any) -> bool:
    """Whether that costs less than the table."""
    few = len(args) == 1 and isinstance(args[0], torch.Tensor)
    return few and args[0].numel() < module.num_embeddings


def ancestors(name: str) -> list[str]:
    """The paths of the modules that the one of this path is within."""
    parts = name.split(".") if name else []
    return [".".join(parts[:count]) for count in range(len(parts))]
