# SPDX-License-Identifier: Apache-2.0
"""Moves a model's parameters into managed memory, which host and device address alike.

The CPU writes them where they will stay; no copy is left elsewhere. Buffers become ordinary tensors
of the device.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..blocks import Block
from ..modes import out_of_inference
from ..store import BlockStore, Loader
from .groups import Groups


class ManagedStore(BlockStore):
    """The blocks of one model, in the groups of one managed set.

    Args:
        groups: All its blocks.
        addresses: Of each group.
        device: Where kernels run.
    """

    def __init__(self, groups: Groups, addresses: list[int], device: torch.device) -> None:
        blocks = [block for group in groups.groups for block in group.blocks] + groups.others
        super().__init__(blocks, None, device)
        self._groups = groups
        self._addresses = addresses

    @out_of_inference()
    def move_in(self, load: Loader | None) -> None:
        """Place every block; on failure what was placed can be moved out again."""
        for group, address in zip(self._groups.groups, self._addresses, strict=True):
            self._lay(group.blocks, load, address=address, host=address)
        for block in self._groups.others:
            block.host_bytes = torch.empty(block.nbytes, dtype=torch.uint8, device="cpu")
            self._fill(block, load)
            block.device_bytes = block.host_bytes.to(self.device, copy=True)
            block.address = block.device_bytes.data_ptr()
            self._enter(block)

    def flush(self, blocks: Iterable[Block] | None = None) -> None:
        """Make the host copies of buffers current; those of parameters always are."""
        for block in self._groups.others:
            if block.host_bytes is not None and block.device_bytes is not None:
                block.host_bytes.copy_(block.device_bytes)
