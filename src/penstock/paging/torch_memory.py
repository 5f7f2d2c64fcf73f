# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's allocator holds on one device, as far as a budget is concerned.

Within a budget its segments are expandable (segments.py): memory behind one is made and given back
in pieces that the native library sees, and pages leave before it is made. Where the user has chosen
otherwise, or another allocator, its memory is known from its own figures, after the fact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.native import Budget, watch_segments

from . import segments
from .process_memory import ProcessMemory


class TorchMemory:
    """PyTorch's allocator on one device.

    Attributes:
        cuda: That it is CUDA's.

    Args:
        device: The device.
    """

    cuda = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index or 0
        self._process: ProcessMemory | None = None

    def count_in(self, budget: Budget) -> None:
        """From here on what is seen of it counts there, and what it caches is given back for it."""
        self.empty_cache()
        segments.expand()
        watch_segments()
        budget.count_torch(self._index)
        budget.set_reclaim(self.empty_cache)

    def leave(self, budget: Budget) -> None:
        """It counts nowhere any more."""
        budget.leave_torch(self._index)
        segments.restore()

    def held(self) -> int:
        """Bytes that it holds, cached ones included."""
        return self._now("reserved_bytes")

    def live(self) -> int:
        """Bytes of tensors."""
        return self._now("allocated_bytes")

    def _now(self, what: str) -> int:
        # memory_allocated() makes a flat dict of all the figures first, which takes longer.
        figures = torch.cuda.memory_stats_as_nested_dict(self._device)
        return int(figures[what]["all"]["current"]) if figures else 0

    def taken(self, locked: int) -> int:
        """Bytes of the device that this process has, which has page-locked so many of the host."""
        if self._process is None:
            self._process = ProcessMemory(self._device)
        return self._process.taken(locked)

    def empty_cache(self) -> None:
        """Give back what no tensor lies in."""
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)

    def pass_begins(self, who_has_what: Callable[[], str], *, anew: bool = True) -> None:
        """Nothing: what tensors take is seen by the driver's calls."""

    def pass_ends(self) -> None:
        """Nothing."""
