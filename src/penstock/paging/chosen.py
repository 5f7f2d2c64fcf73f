# SPDX-License-Identifier: Apache-2.0
"""Which rows passes have chosen, and what that was of each page.

The indices are on the device, where nobody waits for them: they are copied to the host behind the
pass that had them, and are known there in the next pass or the one after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes

from .blocks import Block
from .use import Use


@dataclass(frozen=True, slots=True)
class _Copy:
    """Indices on their way to the host: whose, how many of each, and where they will be."""

    uses: list[int]
    counts: list[int]
    indices: torch.Tensor
    arrived: torch.cuda.Event | None


class Chosen:
    """Counts the rows that passes choose.

    Attributes:
        passes: That have been counted.

    Args:
        rows: Of each use, how many rows its tensors have.
        pages: Of each block of these uses, the addresses of its pages.
        device: Where tensors are; indices that lie elsewhere are not counted.
    """

    def __init__(
        self, rows: Mapping[Use, int], pages: Mapping[Block, range], device: torch.device
    ) -> None:
        self._device = device
        self._number = {use: number for number, use in enumerate(rows)}
        self._pages = pages
        self._rows = max(rows.values(), default=0)
        self._counts = np.zeros((len(rows), self._rows))
        self._last = self._counts
        self._noted: list[tuple[int, torch.Tensor]] = []
        self._copy: _Copy | None = None
        self.passes = 0

    def note(self, use: Use, indices: torch.Tensor) -> None:
        """These rows of the use's tensors are read in the present pass."""
        plain = type(indices) is torch.Tensor and not is_functorch_wrapped_tensor(indices)
        if plain and indices.device == self._device:
            self._noted.append((self._number[use], indices))

    def collect(self, *, wait: bool = False) -> None:
        """A pass is over: have its indices come, and count those that have.

        Args:
            wait: Until they have, all of them.
        """
        self._count(wait=wait)
        if self._copy is None and self._noted:
            self._send()
            if self._copy is not None and (wait or self._copy.arrived is None):
                self._count(wait=wait)
        self._noted.clear()

    def forget(self, share: float) -> None:
        """So much of what was counted counts no more."""
        self._counts = self._counts * (1 - share)

    def nbytes(self, use: Use, block: Block, *, last: bool = False) -> np.ndarray:
        """Bytes that were read of each page of a block, by all passes or by the last one."""
        counts = (self._last if last else self._counts)[self._number[use]]
        tensor = block.slots[0].tensor
        row = block.nbytes / len(tensor)
        rows = np.arange(len(tensor) + 1) * row
        read = np.concatenate(([0.0], np.cumsum(counts[: len(tensor)]) * row))
        pages = self._pages[block]
        edges = np.append(np.asarray(pages), pages.stop) - block.address
        return np.diff(np.interp(edges, rows, read))

    def _send(self) -> None:
        uses: Sequence[int]
        uses, indices = zip(*self._noted, strict=True)
        # The program's own modes are not to see this.
        with torch.inference_mode(False), _disable_current_modes(), torch.no_grad():
            flat = torch.cat([each.flatten() for each in indices])
            arrived = None
            if flat.is_cuda:
                host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=True)
                flat = host.copy_(flat, non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record()
        self._copy = _Copy(list(uses), [each.numel() for each in indices], flat, arrived)

    def _count(self, *, wait: bool) -> None:
        copy = self._copy
        if copy is None:
            return
        if copy.arrived is not None:
            if wait:
                copy.arrived.synchronize()
            elif not copy.arrived.query():
                return
        self._copy = None
        rows = copy.indices.numpy()
        places = np.repeat(np.asarray(copy.uses) * self._rows, copy.counts) + rows
        places = places[(rows >= 0) & (rows < self._rows)]
        found = np.bincount(places, minlength=self._counts.size)
        self._last = found.reshape(len(self._number), -1).astype(float)
        self._counts = self._counts + self._last
        self.passes += 1
