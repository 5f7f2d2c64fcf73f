# SPDX-License-Identifier: Apache-2.0
"""Moves a model's tensors into blocks, and out again.

Invariant: a Parameter keeps its identity (unless it was on "meta", which has none worth keeping),
ties and shared storages stay as they were, and at no time is more than one arena held twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from penstock.errors import UsageError
from penstock.native import ON_HOST, PINNED, Pager

from .dlpack import bytes_at, view_as
from .layout import Block, Home, Slot, align, arenas

Loader = Callable[[str, torch.Tensor], None]
_CPU = torch.device("cpu")
_FLAGS = {Home.PAGED: 0, Home.PINNED: PINNED, Home.HOST: ON_HOST}


def like(tensor: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A view of the flat bytes where `tensor` lies in its own storage."""
    return view_as(flat, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))


class BlockStore:
    """The blocks of one model, in the ranges of one pager."""

    def __init__(self, blocks: list[Block], pager: Pager, device: torch.device) -> None:
        self.blocks = blocks
        self.pager = pager
        self.device = device
        self._ranges: list[tuple[int, int]] = []

    def move_in(self, load: Loader | None) -> None:
        """Place every block; on failure what was placed can be moved out again."""
        for home in (Home.PINNED, Home.HOST, Home.PAGED):
            for arena in arenas([block for block in self.blocks if block.home is home]):
                self._place(arena, load, home)

    def fetch(self) -> None:
        """Bring everything in and wait for it; there must be room."""
        for address, size in self._ranges:
            self.pager.fetch(address, size)

    def flush(self) -> None:
        """Make every host copy current."""
        for block in self.blocks:
            self.pager.flush(block.address, block.nbytes)

    def host_tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, as views of the page-locked host copies."""
        tensors: dict[str, torch.Tensor] = {}
        for block in self.blocks:
            assert block.host_bytes is not None
            for slot in block.slots:
                tensors[slot.name] = like(slot.tensor, block.host_bytes)
        return tensors

    def move_out(self) -> None:
        """Give the model ordinary tensors on the CPU, with the content of the host copies.

        Blocks that were never filled are left alone.
        """
        for block in self.blocks:
            if block.device_bytes is not None and block.host_bytes is not None:
                self._point(block, block.host_bytes.clone())
            block.host_bytes = block.device_bytes = None

    def drop(self) -> None:
        """Leave the model's tensors empty: what they lay in is about to go."""
        for block in self.blocks:
            for slot in block.slots:
                slot.tensor.data = torch.empty(0, dtype=slot.tensor.dtype)
            block.host_bytes = block.device_bytes = None

    def _place(self, blocks: list[Block], load: Loader | None, home: Home) -> None:
        size = sum(align(block.nbytes) for block in blocks)
        made = self.pager.create_range(size, _FLAGS[home])
        if home is Home.PAGED:
            self._ranges.append((made.address, size))
        self._lay(blocks, load, address=made.address, host=made.host or 0)
        if home is Home.PINNED:
            self.pager.fetch(made.address, size)

    def _lay(self, blocks: list[Block], load: Loader | None, *, address: int, host: int) -> None:
        """Fill blocks one behind the other, from host address `host`; `address` is the device's."""
        for block in blocks:
            block.address = address
            block.host_bytes = bytes_at(host, block.nbytes, _CPU)
            self._fill(block, load)
            block.device_bytes = bytes_at(address, block.nbytes, self.device)
            self._point(block, block.device_bytes)
            address += align(block.nbytes)
            host += align(block.nbytes)

    @staticmethod
    def _fill(block: Block, load: Loader | None) -> None:
        first = block.slots[0]
        assert block.host_bytes is not None
        if first.tensor.device.type != "meta":
            source = torch.empty(0, dtype=torch.uint8, device=first.tensor.device)
            source.set_(first.tensor.untyped_storage())
            block.host_bytes.copy_(source)
            return
        if load is None:
            raise UsageError(
                f"{first.name} is on the meta device and has no content",
                remedy="attach(model, load=...) with a function that fills it",
            )
        seen: set[int] = set()
        for slot in block.slots:
            if id(slot.tensor) not in seen:
                seen.add(id(slot.tensor))
                load(slot.name, like(slot.tensor, block.host_bytes))

    @staticmethod
    def _point(block: Block, flat: torch.Tensor) -> None:
        """Let every tensor of the block lie in `flat`."""
        moved: dict[int, torch.Tensor] = {}
        for slot in block.slots:
            before = id(slot.tensor)
            if before not in moved:
                moved[before] = _moved(slot, like(slot.tensor, flat))
            table: dict[str, Any] = (
                slot.module._parameters if slot.is_parameter else slot.module._buffers
            )
            table[slot.key] = slot.tensor = moved[before]


def _moved(slot: Slot, data: torch.Tensor) -> torch.Tensor:
    """The slot's tensor with new data: the same object, or a new one in place of a meta one."""
    if slot.tensor.device.type != "meta":
        slot.tensor.data = data
        return slot.tensor
    if slot.is_parameter:
        return nn.Parameter(data, requires_grad=slot.tensor.requires_grad)
    return data
