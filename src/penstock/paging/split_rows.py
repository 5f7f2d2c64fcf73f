# SPDX-License-Identifier: Apache-2.0
"""A tensor [rows, ...] of which some pages are on the device, and the others at the host copy.

``weight[indices]`` then reads each part of a row where it is. No page moves for it, no kernel is
needed but PyTorch's own, and nobody has to know the indices: one view spans both memories, from the
lower address to the end of the upper one, and a table says where in it each part of each row lies.
"""

from __future__ import annotations

from collections.abc import Set
from math import gcd
from typing import Any

import numpy as np
import torch
from torch import nn

from .blocks import ALIGNMENT, Block
from .dlpack import bytes_at, view_as

INDICES = (torch.int64, torch.int32)
_WORD = torch.int64  # what is copied: a part of a row is a whole number of them
# The view begins so many bytes early: what looks tensors up by their storage's address must not
# take it for one of a block, which is aligned to more.
_EARLY = 16


class IndexedParameter(nn.Parameter):
    """A parameter at its host copy, while some of its rows can be read on the device."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> torch.Tensor:
        rows: SplitRows = self.__dict__[_ROWS]
        if rows.takes(self, index):
            return rows.gathered(index)
        return super().__getitem__(index)


_ROWS = "_penstock_rows"


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def can_be_split(block: Block, rows: int) -> bool:
    """Whether the block is one parameter whose rows lie one behind the other."""
    first = block.slots[0].tensor
    return (
        all(slot.tensor is first for slot in block.slots)
        and type(first) is nn.Parameter
        and first.is_contiguous()
        and first.nbytes == block.nbytes
        and len(first) == rows
        and block.nbytes % (rows * ALIGNMENT) == 0
    )


class SplitRows:
    """One block's rows, some of whose pages are on the device.

    Attributes:
        block: The block.
        indexed: Rows have been taken from it by their indices since enter().

    Args:
        block: One for which can_be_split() is true; its host copy is not encoded.
        device: Where its tensor is, as PyTorch calls it.
        pages: The addresses of all its pages.
        there: Those of them that are on the device whenever enter() has been called; where there
            are none, rows are read at the host copy as they would be anyway.
    """

    def __init__(
        self, block: Block, device: torch.device, pages: range, there: Set[int] = frozenset()
    ) -> None:
        parameter = block.slots[0].tensor
        assert isinstance(parameter, nn.Parameter)
        assert block.host_bytes is not None
        self.block = block
        self._parameter = parameter
        self._host = block.host_bytes.data_ptr()
        self._where: torch.Tensor | None = None
        self.indexed, self._version = False, 0
        if there:
            self._lay(block, device, pages, there)

    def _lay(self, block: Block, device: torch.device, pages: range, there: Set[int]) -> None:
        row = block.nbytes // len(self._parameter)
        part = gcd(row, abs(self._host - block.address), pages.step)
        begins = block.address - pages.start + np.arange(0, block.nbytes, part)
        is_there = np.fromiter((page in there for page in pages), bool, len(pages))
        whole = is_there[begins // pages.step] & is_there[(begins + part - 1) // pages.step]
        lowest = min(self._host, block.address)
        numbers = np.arange(len(begins))
        at_device = numbers + (block.address - lowest) // part
        at_host = numbers + (self._host - lowest) // part
        where = np.where(whole, at_device, at_host).reshape(len(self._parameter), -1)
        size = max(self._host, block.address) - lowest + block.nbytes
        with torch.inference_mode(False):
            self._where = torch.from_numpy(where).to(device)
            words = part // _WORD.itemsize
            flat = bytes_at(lowest - _EARLY, size + _EARLY, device)
            shape_of_view = size // part, words
            self._span = view_as(flat, _WORD, shape_of_view, (words, 1), _EARLY // _WORD.itemsize)

    def enter(self) -> None:
        """The pages are there, and the tensor is given at its host copy."""
        self.indexed = False
        self._version = _version(self._parameter)
        self._parameter.__dict__[_ROWS] = self
        self._parameter.__class__ = IndexedParameter

    def leave(self) -> None:
        """They may go."""
        self._parameter.__class__ = nn.Parameter
        self._parameter.__dict__.pop(_ROWS, None)

    def takes(self, parameter: nn.Parameter, index: Any) -> bool:
        """Whether rows by this index are to be read where they are."""
        by_rows = (
            isinstance(index, torch.Tensor)
            and index.dtype in INDICES
            and index.dim() > 0
            and index.device == parameter.device
            and not torch._C._functorch.is_functorch_wrapped_tensor(index)
        )
        self.indexed = self.indexed or by_rows
        return (
            by_rows
            and self._where is not None
            # Somebody may have given the tensor other data, or have written to the host copy.
            and parameter.data_ptr() == self._host
            and _version(parameter) == self._version
        )

    def gathered(self, index: torch.Tensor) -> torch.Tensor:
        """The rows of these indices, as indexing makes them of a tensor in one place."""
        assert self._where is not None
        words = self._span[self._where[index]]
        shape = self._parameter.shape[1:]
        return words.view(-1).view(self._parameter.dtype).view(*index.shape, *shape)
