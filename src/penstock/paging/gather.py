# SPDX-License-Identifier: Apache-2.0
"""Modules that read few rows of their tensors, which cross the link alone.

Two kinds are known: an embedding whose table is another module's matrix, such as a tied head, and
experts, whose weights lie in tensors [experts, ...] of which a router chooses rows. Called with
fewer indices than there are rows, such a module reads at the page-locked host copy, over the link:
nothing is fetched that nobody reads, and nobody has to know the indices.

Experts that are read at the same speed from the device may stay there, since a row that is there
need not cross at all. Which do is decided by room: what the other modules of such passes need comes
first, whole, because every byte of it is read each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from penstock.bound import must_cross

from .blocks import SMALL_BLOCK, Block
from .use import Use

SPARE = 1 / 32  # of the room: left free before one more block may stay
_INDICES = (torch.int64, torch.int32)


def rows_of(module: nn.Module, use: Use) -> int:
    """Of how many rows such a module's tensors are; 0 where it is none."""
    slots = [slot for block in use.blocks for slot in block.slots]
    if use.nbytes <= SMALL_BLOCK:
        return 0
    if isinstance(module, nn.Embedding):
        tied = any(not isinstance(slot.module, nn.Embedding) for slot in slots)
        return module.num_embeddings if tied and module.max_norm is None else 0
    shapes = [slot.tensor.shape for slot in slots]
    if any(slot.module is not module for slot in slots) or min(map(len, shapes)) < 2:
        return 0
    rows = {shape[0] for shape in shapes}
    return rows.pop() if len(rows) == 1 and max(map(len, shapes)) > 2 else 0


def indices_in(args: Iterable[Any], kwargs: dict[str, Any]) -> int | None:
    """How many indices a module is called with; None where it is not clear which they are."""
    found = [
        value.numel()
        for value in (*args, *kwargs.values())
        if isinstance(value, torch.Tensor) and value.dtype in _INDICES
    ]
    return found[0] if len(found) == 1 else None


class Gathers:
    """The modules of one model that read rows, and which of their blocks stay on the device.

    Attributes:
        few: Experts read few rows in this pass, or the last one.
        touched: Bytes of these rows; at the most, since an index may come twice.
        in_place: Of all rows that it read at the host copy, also at the most.

    Args:
        uses: Those of all modules that own paged blocks.
        define: Makes a use of a part of the blocks.
        pages: Tells the addresses of a block's pages.
    """

    def __init__(
        self,
        uses: dict[nn.Module, Use],
        define: Callable[[str, Iterable[Block]], Use],
        pages: Callable[[Block], Iterable[int]],
    ) -> None:
        self._rows = {use: rows for module, use in uses.items() if (rows := rows_of(module, use))}
        self._define = define
        self._pages = {
            block: frozenset(pages(block))
            for module, use in uses.items()
            if use in self._rows and not isinstance(module, nn.Embedding)
            for block in use.blocks
        }
        self._stay: dict[Block, None] = {}
        self._parts: dict[tuple[Use, frozenset[Block]], Use] = {}
        self._whole: set[Use] = set()  # that such passes declare besides
        self._seen: list[Use] = []  # in the present pass
        self._room = 0
        self.few = False
        self.touched = self.in_place = 0

    def __contains__(self, use: object) -> bool:
        return use in self._rows

    def pass_begins(self) -> None:
        """Nothing has been read yet."""
        if self.few and not self._whole.issuperset(self._seen):
            self._whole.update(self._seen)
            self._room = 0
        self._seen.clear()
        self.few = False
        self.touched = self.in_place = 0

    def declared(self, use: Use) -> None:
        """A use runs as it is."""
        if self._pages:
            self._seen.append(use)

    def part(
        self,
        use: Use,
        args: Any,
        kwargs: Any,
        room: Callable[[], int],
        covered: Callable[..., bool],
    ) -> Use:
        """What of a module's use is to be declared: the rest is read at the host copy.

        Args:
            use: The module's.
            args: What the module is called with.
            kwargs: What it is called with by name.
            room: Tells the pages that there is room for.
            covered: Whether a block is on the device for somebody else.
        """
        indices = indices_in(args, kwargs)
        taken = any(block.written or covered(block) for block in use.blocks)
        if indices is None or indices >= self._rows[use] or taken:
            return use
        stay: frozenset[Block] = frozenset()
        if use.blocks <= self._pages.keys():
            self.few = True
            self.touched += use.nbytes * indices // self._rows[use]
            self._choose(room())
            stay = use.blocks.intersection(self._stay)
        part = self._parts.get((use, stay))
        if part is None:
            part = self._define(use.name, stay) if stay else Use(use.name, stay)
            part.tables, part.whole = use.tables, use
            self._parts[use, stay] = part
        self.in_place += (use.nbytes - part.nbytes) * indices // self._rows[use]
        return part

    def must_cross(self, nbytes: int, room: int) -> int:
        """Bytes of such a pass that cross the link whoever pages, where rows are drawn evenly.

        Args:
            nbytes: Of all blocks.
            room: Of the device, for blocks.
        """
        experts = sum(block.nbytes for block in self._pages) if self.few else 0
        return must_cross(nbytes - experts, room, experts=experts, chosen=self.touched)

    def _choose(self, room: int) -> None:
        if room == self._room or not self._whole:
            return
        self._room = room
        pages = set().union(*(use.pages for use in self._whole))
        all_fits = len(pages.union(*self._pages.values())) <= room
        stay: dict[Block, None] = {}
        for block in (*self._stay, *(each for each in self._pages if each not in self._stay)):
            more = self._pages[block] - pages
            spare = 0 if all_fits or block in self._stay else int(room * SPARE)
            if len(pages) + len(more) + spare <= room:
                stay[block] = None
                pages |= more
        self._stay = stay
