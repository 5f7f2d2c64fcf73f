# SPDX-License-Identifier: Apache-2.0
"""Blocks whose tensors lie at the host copy for a while, where every access to them is right.

Outside every use a weight that somebody asks for is given at its page-locked host copy, which the
device reaches over the link: no device memory is taken, whatever is read, in whatever order and for
however long. What was written there goes to the device before the next use. A tensor that is still
held by then is given at the host copy again when the use is over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .blocks import Block, Home
from .store import BlockStore
from .watch import block_of

_ASKED_FOR = -1  # it may have been written in ways that leave no trace


class OnHost:
    """Which blocks of one model are given at their host copies.

    Attributes:
        given: Those that are now, and the version of each that is known on the device.
        changed_in_pass: An operator has changed one within forward, so every pass is watched.

    Args:
        store: The blocks, placed.
        outside: How many references others had to tensors before, by id(). They may go, so that
            they are none of those that there are anyway.
    """

    def __init__(self, store: BlockStore, outside: Mapping[int, int]) -> None:
        self._store = store
        self.given: dict[Block, int] = {}
        self.changed_in_pass = False
        self._versions: dict[Block, int] = {}  # when they were given
        self._held: dict[Block, None] = {}  # given again after each use
        self._ever_held: set[Block] = set()
        self._new_holders = False
        self._aliases: dict[Block, int] = {}  # over the host copy, without any of the program's
        self._by_address: dict[int, Block] = {}  # those that were given, by that of the host copy
        self._references: dict[Block, int] = {}
        self._on_page: dict[int, list[Block]] = {}  # by where a page begins: those that lie on it
        for block in (block for block in store.blocks if block.home is Home.PAGED):
            others = sum(outside.get(id(tensor), 0) for tensor in store.tensors(block))
            self._references[block] = self._count(block) - others
            for page in self._ends(block):
                self._on_page.setdefault(page, []).append(block)

    def __contains__(self, block: Block) -> bool:
        return block in self.given

    def give(self, block: Block, *, asked_for: bool) -> None:
        """Let the block's tensors lie at the host copy.

        Args:
            block: A paged block.
            asked_for: Somebody outside every use has it, and may write it.
        """
        if block not in self.given:
            if block.written:
                self._store.flush([block])
            self.given[block] = self._versions[block] = self._store.version(block)
            self._store.to_host(block)
            if block not in self._aliases:
                self._aliases[block] = self._store.host_aliases(block)
            if block.host_bytes is not None:
                self._by_address[block.host_bytes.data_ptr()] = block
        if asked_for and self.given[block] != _ASKED_FOR:
            if self._is_beside_written(block):
                # Pages go out whole: later that would be over what is written to the host copy.
                self._store.flush([block])
            self.given[block] = _ASKED_FOR

    def take_back(self, blocks: Iterable[Block]) -> None:
        """The device's address is theirs again, with what was written meanwhile."""
        for block in blocks:
            known = self.given.get(block)
            if known is None:
                continue
            try:
                # None are known where giving it failed.
                taken = self._store.to_device(block, aliases=self._aliases.get(block, 0))
                if taken or known != self._store.version(block):
                    self._store.refresh(block)
                    if known == _ASKED_FOR and self._is_held(block):
                        self._held[block] = None
                        self._new_holders |= block not in self._ever_held
                        self._ever_held.add(block)
            finally:
                del self.given[block]

    def changes(self) -> int:
        """By how much the versions of what is given, and never written in forward, have grown."""
        given = (block for block in self.given if not block.written)
        return sum(self._store.version(block) - self._versions[block] for block in given)

    def refer(self, block: Block, more: int) -> None:
        """So many more references to the block's tensors are our own."""
        self._references[block] += more

    def take_all_back(self) -> None:
        """As take_back(), of all."""
        self.take_back(list(self.given))

    def unread(self, before: set[Block]) -> None:
        """What was given since, and not to anybody who kept it, is as if it had not been."""
        for block in self.given.keys() - before:
            del self.given[block]
            self._store.to_device(block)

    def left_at(self, value: Any) -> Block | None:
        """The block at whose host copy a tensor lies, while the block's own do not."""
        block = self._lies_at(value)
        return None if block in self.given else block

    def given_at(self, value: Any) -> Block | None:
        """The block at whose host copy a tensor lies, as the block's own do."""
        block = self._lies_at(value)
        return block if block in self.given else None

    @contextmanager
    def changing(self, blocks: list[Block]) -> Iterator[None]:
        """An operator within forward changes these at their host copies.

        A page that they share with others goes out whole, if those are changed: so it has no bytes
        that are older.
        """
        self.changed_in_pass = True
        self._store.flush(blocks)
        yield
        for block in blocks:
            self._store.refresh(block)

    def _lies_at(self, value: Any) -> Block | None:
        return block_of(value, self._by_address) if self._by_address else None

    def has_new_holders(self) -> bool:
        """Whether somebody has kept a block since the last time, and may use it in forward."""
        new, self._new_holders = self._new_holders, False
        return new

    def give_held(self) -> None:
        """After the uses: what somebody still holds is given at the host copy again."""
        for block in list(self._held):
            del self._held[block]
            if self._is_held(block):
                self.give(block, asked_for=True)

    def _ends(self, block: Block) -> set[int]:
        """The pages that the block may share with others: its first and its last."""
        pages = self._store.pages(block.address, block.nbytes)
        return {*pages[:1], *pages[-1:]}

    def _is_beside_written(self, block: Block) -> bool:
        return any(other.written for page in self._ends(block) for other in self._on_page[page])

    def _is_held(self, block: Block) -> bool:
        # What has gone to another module, as a parametrized weight does, has left its own place.
        gone = sum(dict.get(slot.table, slot.key) is not slot.tensor for slot in block.slots)
        return (
            self._count(block) > self._references[block] - gone
            or self._store.host_aliases(block) > self._aliases[block]
        )

    def _count(self, block: Block) -> int:
        wrappers = {id(slot.outermost): slot.outermost for slot in block.slots}
        held = (*self._store.tensors(block), *wrappers.values())
        return sum(sys.getrefcount(tensor) for tensor in held if tensor is not None)
