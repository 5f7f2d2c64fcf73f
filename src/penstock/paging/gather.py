# SPDX-License-Identifier: Apache-2.0
"""Modules that read few rows of their tensors, which cross the link alone.

Two kinds are known: an embedding whose table is another module's matrix, such as a tied head, and
experts, whose weights lie in tensors [experts, ...] of which a router chooses rows. Called with
fewer indices than there are rows, such a module reads at the page-locked host copy, over the link:
nothing is fetched that nobody reads, and nobody has to know the indices.

Experts that are read at the same speed from the device may stay there, since a row that is there
need not cross at all. How many do is decided by room: what the other modules of such passes need
comes first, whole, because every byte of it is read each time. Which do is decided by what has been
read, page by page, where rows are taken by their indices (split_rows.py): a page takes the place of
another when it would have spared more bytes than it takes to bring it in, which is how to rent or
buy skis at twice the least cost (Karlin, Manasse, Rudolph, Sleator, Competitive snoopy caching,
1988). Else whole tensors stay, one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import nn

from penstock.bound import must_cross

from .blocks import SMALL_BLOCK, Block
from .chosen import Chosen
from .on_host import OnHost
from .running import Running
from .split_rows import INDICES, SplitRows, can_be_split
from .store import BlockStore
from .use import Use
from .uses import Uses

SPARE = 1 / 32  # of the room: left free before one more page may stay
# It is looked which pages are read most after 1, 2, 4, 8 and 16 passes, and then when so many more
# have been counted, or a 16th of all, since other pages make another plan; of what was counted a
# quarter is forgotten each time. benchmarks/expert_pages.py sweeps all three.
LOOK_AFTER = 16
FORGET = 1 / 4
# Pages' bytes, of one for another: the plan that is made anew may bring in what stayed as well.
PRICE = 2


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


def indices_in(args: Iterable[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The indices that a module is called with; None where it is not clear which they are."""
    found = [
        value
        for value in (*args, *kwargs.values())
        if isinstance(value, torch.Tensor) and value.dtype in INDICES
    ]
    return found[0] if len(found) == 1 else None


class Gathers:
    """The modules of one model that read rows, and which of their pages stay on the device.

    Attributes:
        few: Experts read few rows in this pass, or the last one.
        touched: Bytes of these rows; at the most, since an index may come twice.

    Args:
        uses: Those of all modules that own paged blocks.
        declared: Where more uses are declared.
        store: The blocks, placed.
        on_host: Lets a block's tensors lie at the host copy.
        running: The uses that run.
    """

    def __init__(
        self,
        uses: dict[nn.Module, Use],
        declared: Uses,
        store: BlockStore,
        on_host: OnHost,
        running: Running,
    ) -> None:
        self._rows = {use: rows for module, use in uses.items() if (rows := rows_of(module, use))}
        self._declared = declared
        self._store = store
        self._on_host = on_host
        self._running = running
        self._pages = {
            block: store.pages(block.address, block.nbytes)
            for module, use in uses.items()
            if use in self._rows and not isinstance(module, nn.Embedding)
            for block in use.blocks
        }
        experts = {use: n for use, n in self._rows.items() if use.blocks <= self._pages.keys()}
        self._chosen = Chosen(experts, self._pages, store.device)
        self._experts = dict.fromkeys(experts)
        self._stay: frozenset[int] = frozenset()  # pages
        # What is declared of each, and for what it was made.
        self._parts: dict[Use, tuple[frozenset[int], bool, Use]] = {}
        self._split: list[SplitRows] = []  # entered in the present pass
        self._indexed = 0  # passes that took rows by their indices, less others of late
        self._by_rows = False  # passes do that, as a rule
        self._look_at = 1  # pass
        self._whole: set[Use] = set()  # that such passes declare besides
        self._seen: list[Use] = []  # in the present pass
        self._room = 0
        self._in_tables = 0
        self.few = False
        self.touched = 0

    def __contains__(self, use: object) -> bool:
        return use in self._rows

    @property
    def in_place(self) -> int:
        """Of all rows, what the last pass read at the host copy; of tables at the most."""
        if not self.few:
            return self._in_tables
        self._chosen.collect(wait=True)
        read = 0.0
        for use in self._experts:
            part = self._parts[use][2] if use in self._parts else use
            for block in use.blocks - part.blocks:
                split = self._by_rows and any(each.block is block for each in part.split)
                away = [not split or page not in self._stay for page in self._pages[block]]
                read += float(self._chosen.nbytes(use, block, last=True)[np.array(away)].sum())
        return self._in_tables + int(read)

    def pass_begins(self) -> None:
        """Nothing has been read yet."""
        if self.few and not self._whole.issuperset(self._seen):
            self._whole.update(self._seen)
            self._room = 0
        if self.few:
            self._chosen.collect()
        if self._split:
            more = 1 if all(rows.indexed for rows in self._split) else -1
            self._indexed = min(max(0, self._indexed + more), LOOK_AFTER)
            # Not by turns, where passes are of both kinds.
            if self._by_rows != (by_rows := self._indexed > (0 if self._by_rows else 1)):
                self._by_rows, self._room = by_rows, 0
        self._split.clear()
        self._seen.clear()
        self.few = False
        self.touched = self._in_tables = 0

    def declared(self, use: Use) -> None:
        """A use runs as it is."""
        if self._pages:
            self._seen.append(use)

    def part(self, use: Use, args: Any, kwargs: Any) -> Use:
        """What of a module's use is to be declared: the rest is read at the host copy.

        Args:
            use: The module's.
            args: What the module is called with.
            kwargs: What it is called with by name.
        """
        indices = indices_in(args, kwargs)
        taken = any(block.written or self._running.covers(block) for block in use.blocks)
        if indices is None or indices.numel() >= self._rows[use] or taken:
            return use
        read = use.nbytes * indices.numel() // self._rows[use]
        if use in self._experts:
            self.few = True
            self.touched += read
            self._chosen.note(use, indices)
            self._choose(self._running.room())
        else:
            self._in_tables += read
        return self._part(use)

    def must_cross(self, nbytes: int, room: int) -> int:
        """Bytes of such a pass that cross the link whoever pages, where rows are drawn evenly.

        Args:
            nbytes: Of all blocks.
            room: Of the device, for blocks.
        """
        experts = sum(block.nbytes for block in self._pages) if self.few else 0
        return must_cross(nbytes - experts, room, experts=experts, chosen=self.touched)

    # ---- What is declared of a use ---------------------------------------------------------

    def _part(self, use: Use) -> Use:
        """The part that is to be declared now; its other blocks lie at their host copies then."""
        stay, by_rows, part = self._parts.get(use, (self._stay, self._by_rows, None))
        as_before = stay is self._stay and by_rows == self._by_rows
        if part is None or not (as_before or use.open):
            part = self._renewed(use, part)
            self._parts[use] = self._stay, self._by_rows, part
        for block in use.blocks - part.blocks:
            self._on_host.give(block, asked_for=False)
        self._split += part.split
        return part

    def _renewed(self, use: Use, before: Use | None) -> Use:
        stay = self._stay if use in self._experts else frozenset()
        pages = {block: self._pages.get(block, range(1)) for block in use.blocks}
        whole = frozenset(block for block in use.blocks if stay.issuperset(pages[block]))
        rows = self._rows[use]
        others = [b for b in use.blocks - whole if b in self._pages and can_be_split(b, rows)]
        there = {b: stay.intersection(pages[b] if self._by_rows else ()) for b in others}
        pieces = tuple(piece for b in others for piece in pieces_of(b, pages[b], there[b]))
        if before is not None:
            if (before.blocks, before.pieces) == (whole, pieces):
                return before
            self._declared.forget(before)
        made = whole or pieces
        part = self._declared.define(use.name, whole, pieces) if made else Use(use.name, whole)
        part.tables, part.whole = use.tables, use
        for block in others:
            self._on_host.give(block, asked_for=False)
            part.split.append(SplitRows(block, self._store.device, pages[block], there[block]))
        return part

    # ---- Which pages stay ------------------------------------------------------------------

    def _choose(self, room: int) -> None:
        look = self._chosen.passes >= self._look_at and self._by_rows
        if not self._whole or (room == self._room and not look):
            return
        self._room = room
        whole = frozenset().union(*(use.pages for use in self._whole))
        others = {page for pages in self._pages.values() for page in pages} - whole
        free = room - len(whole)
        if len(others) <= free:
            stay = others
        elif self._by_rows:
            read = {page: nbytes for page, nbytes in self._read().items() if page not in whole}
            price = PRICE * self._store.chunk if look else None
            stay = most_read(read, self._stay, free, spare=int(room * SPARE), price=price)
        else:
            stay = self._first(whole, room)
        if look:
            self._look_at = next_look(self._chosen.passes)
            self._chosen.forget(FORGET)
        if stay != self._stay:
            self._declared.cool(self._stay - stay)
            self._stay = frozenset(stay)

    def _first(self, whole: frozenset[int], room: int) -> set[int]:
        """Whole blocks, one behind the other; those that stay already first."""
        pages, kept = set(whole), [b for b in self._pages if self._stay.issuperset(self._pages[b])]
        stay: set[int] = set()
        for block in dict.fromkeys((*kept, *self._pages)):
            more = pages.union(self._pages[block])
            spare = 0 if block in kept else int(room * SPARE)
            if len(more) + spare <= room:
                pages = more
                stay.update(self._pages[block])
        return stay

    def _read(self) -> dict[int, float]:
        """Of each page, bytes that passes have read of it."""
        read: dict[int, float] = {}
        for use in self._experts:
            for block in use.blocks:
                for page, nbytes in zip(
                    self._pages[block], self._chosen.nbytes(use, block), strict=True
                ):
                    read[page] = read.get(page, 0.0) + float(nbytes)
        return read


def next_look(passes: int, most: int = LOOK_AFTER) -> int:
    """After which pass it is looked again, where it has been after so many."""
    return passes + max(min(passes, most), passes // most)


def most_read(
    read: dict[int, float], stay: Set[int], free: int, *, spare: int = 0, price: float | None = None
) -> set[int]:
    """Which pages stay: of those that do already the most read ones, and then the others' most.

    Args:
        read: Bytes that were read of each page that may.
        stay: Those that do.
        free: How many may.
        spare: So many fewer, where others come.
        price: What one must have been read more than another whose place it takes; None: none does.
    """
    by_reads = sorted(read, key=read.__getitem__, reverse=True)
    kept = [page for page in by_reads if page in stay][: max(0, free)]
    come = [page for page in by_reads if page not in stay]
    last = len(kept) - 1
    more = max(0, free - spare - len(kept))
    kept, come = [*kept, *come[:more]], come[more:]
    for place, page in zip(range(last, -1, -1), come, strict=False):
        if price is None or read[page] - read[kept[place]] <= price:
            break
        kept[place] = page
    return set(kept)


def pieces_of(block: Block, pages: range, there: Set[int]) -> Iterator[tuple[int, int]]:
    """Address and bytes of what of a block lies in these of its pages, neighbours in one."""
    end = block.address + block.nbytes
    runs = groupby(pages, key=there.__contains__)
    for run in (list(run) for is_there, run in runs if is_there):
        first = max(run[0], block.address)
        yield first, min(run[-1] + pages.step, end) - first
