# SPDX-License-Identifier: Apache-2.0
"""The uses of one model as its pager knows them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from penstock.native import Pager

from .blocks import Block
from .on_host import OnHost
from .store import BlockStore
from .use import NO_USE, Use, ancestors


class Uses:
    """Makes, joins and splits uses.

    Args:
        store: The model's blocks, placed.
        pager: Where uses are declared.
        by_tensor: The paged block of each tensor, by its id().
        on_host: Told which references to tensors are those of uses.
    """

    def __init__(
        self,
        store: BlockStore,
        pager: Pager,
        by_tensor: dict[int, Block],
        on_host: OnHost,
    ) -> None:
        self._store = store
        self._pager = pager
        self._by_tensor = by_tensor
        self._on_host = on_host
        self._by_number: dict[int, Use] = {}

    def of_modules(
        self, names: dict[nn.Module, str], paged: Iterable[Block]
    ) -> dict[nn.Module, Use]:
        """One for each module that owns some of these blocks and is called.

        Args:
            names: The path of each module.
            paged: The blocks.
        """
        own: dict[nn.Module, dict[Block, None]] = {}
        for block in paged:
            for slot in block.slots:
                # What is never called (nn.ParameterList) is read tensor by tensor.
                if type(slot.module).forward is not nn.Module.forward:
                    own.setdefault(slot.module, {})[block] = None
        by_name = {names[module]: blocks for module, blocks in own.items()}
        for name, blocks in by_name.items():
            # Uses that nest run together: the smallest budget has to hold them.
            outer = [by_name.get(each, {}) for each in ancestors(name)]
            if any(outer):
                self.define("", {**blocks, **{block: None for each in outer for block in each}})
        return {module: self.define(names[module], blocks) for module, blocks in own.items()}

    def define(
        self,
        name: str,
        blocks: Iterable[Block],
        pieces: tuple[tuple[int, int], ...] = (),
        *,
        is_read: bool = False,
    ) -> Use:
        """A use of these blocks, and of pieces of others, declared."""
        use = Use(name, frozenset(blocks), pieces=pieces, is_read=is_read)
        parts = [*((block.address, block.nbytes) for block in use.blocks), *pieces]
        use.pages = frozenset(page for part in parts for page in self._store.pages(*part))
        self.declare(use)
        return use

    def cool(self, pages: Iterable[int]) -> None:
        """These pages are the first to leave, until another use has them."""
        for page in pages:
            self._pager.cool(page, 1)

    def forget(self, use: Use) -> None:
        """It is not begun again."""
        self._refer_to(use, ())
        self._by_number.pop(use.number, None)

    def declare(self, use: Use) -> None:
        """Tell the pager of it, also again when another block of it is written."""
        blocks = [(block.address, block.nbytes, block.written) for block in use.blocks]
        use.number = self._pager.define_use([*blocks, *((*each, False) for each in use.pieces)])
        self._refer_to(
            use,
            tuple(
                tensor
                for block in use.blocks
                if not block.written
                for tensor in self._store.tensors(block)
            ),
        )
        self._by_number[use.number] = use

    def join(self, name: str, parts: list[Use]) -> Use:
        """One use of all that these use, which run within it."""
        use = self.define(name, {block: None for part in parts for block in part.blocks})
        use.parts = parts
        for part in parts:
            part.joint = use
        return use

    def split(self, use: Use) -> None:
        """The parts do not run together: each is declared by itself from here on."""
        for part in use.parts:
            part.joint = None
        self._refer_to(use, ())
        use.parts, use.tables, use.number = [], [], NO_USE
        use.blocks, use.pages = frozenset(), frozenset()

    def name_of(self, number: int) -> str:
        """The module path behind a use's number, for reports."""
        return self._by_number[number].name if number in self._by_number else ""

    def _refer_to(self, use: Use, tensors: tuple[torch.Tensor, ...]) -> None:
        for more, some in ((-1, use.tensors), (1, tensors)):
            for tensor in some:
                self._on_host.refer(self._by_tensor[id(tensor)], more)
        use.tensors = tensors
