# SPDX-License-Identifier: Apache-2.0
"""Host memory for activations, page-locked where there is a GPU, and used again and again.

Page-locking takes 0.2 s a GB, so nothing is given back before close(): the slabs that the first
steps asked for serve all later ones. Pieces are cut from them by best fit and joined again.

Thread rule: one thread at a time takes; any may give back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import _disable_current_modes

from penstock.units import MIB

GRAIN = 4096  # bytes: what pieces are rounded up to
# Powers of two, which PyTorch's allocator of page-locked memory rounds up to anyway.
LEAST_SLAB, MOST_SLAB = 16 * MIB, 256 * MIB


@dataclass(slots=True, eq=False)
class _Slab:
    """One piece of host memory.

    Attributes:
        content: Its bytes.
        free: (offset, bytes) of what nobody has, by offset.
    """

    content: torch.Tensor
    free: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class HostBuffer:
    """Bytes of a slab.

    Attributes:
        content: As many as were asked for.
    """

    content: torch.Tensor
    _slab: _Slab
    _offset: int
    _size: int


class HostBuffers:
    """Buffers of any size.

    Args:
        pinned: Whether they are to be page-locked.
        budget: Bytes of the device's budget, by which slabs are sized.
        check_host: Called with the bytes of host memory about to be asked for; raises if that is
            too much.
    """

    def __init__(self, *, pinned: bool, budget: int, check_host: Callable[[int], None]) -> None:
        self._pinned = pinned
        self._slab = min(MOST_SLAB, max(LEAST_SLAB, _power_of_two(budget // 16)))
        self._check_host = check_host
        self._slabs: list[_Slab] = []
        self._returned: deque[HostBuffer] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that were ever needed."""
        return sum(slab.content.nbytes for slab in self._slabs)

    def take(self, nbytes: int) -> HostBuffer:
        """A buffer; what is in it is anybody's guess.

        Raises:
            OutOfMemory: If the host has no more.
        """
        while self._returned:
            self._put_back(self._returned.popleft())
        size = -(-nbytes // GRAIN) * GRAIN
        fits = [
            (free, offset, slab)
            for slab in self._slabs
            for offset, free in slab.free
            if free >= size
        ]
        if not fits:
            slab = self._grow(size)
            free, offset = slab.free[0][1], 0
        else:
            free, offset, slab = min(fits, key=lambda fit: (fit[0], fit[1]))
        slab.free.remove((offset, free))
        if free > size:
            slab.free.append((offset + size, free - size))
        with _disable_current_modes():  # they would take it for the device's
            content = slab.content.narrow(0, offset, nbytes)
        return HostBuffer(content, slab, offset, size)

    def give_back(self, buffer: HostBuffer) -> None:
        """It is free again; from a finalizer too, so nothing is touched that take() may be at."""
        self._returned.append(buffer)

    def close(self) -> None:
        """Nobody asks for more; memory goes with the last buffer in it."""
        self._slabs.clear()
        self._returned.clear()
        # PyTorch's allocator of page-locked memory would keep it for the life of the process.
        empty = getattr(torch._C, "_host_emptyCache", None)
        if self._pinned and empty is not None:
            empty()

    def _grow(self, size: int) -> _Slab:
        nbytes = max(self._slab, _power_of_two(size))
        self._check_host(nbytes)
        with _disable_current_modes():
            content = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
        slab = _Slab(content, [(0, nbytes)])
        self._slabs.append(slab)
        return slab

    def _put_back(self, buffer: HostBuffer) -> None:
        begin, end = buffer._offset, buffer._offset + buffer._size
        rest = []
        for offset, size in buffer._slab.free:
            if offset + size == begin:
                begin = offset
            elif offset == end:
                end = offset + size
            else:
                rest.append((offset, size))
        buffer._slab.free = [*rest, (begin, end - begin)]


def _power_of_two(nbytes: int) -> int:
    return 1 << max(0, nbytes - 1).bit_length()
