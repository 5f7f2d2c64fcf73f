# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's allocator holds on one device, as far as a budget is concerned.

Within a budget its segments are expandable (segments.py): memory behind one is made and given back
in pieces that the native library sees, and pages leave before it is made. Where the user has chosen
otherwise, or another allocator, its memory is known from its own figures, after the fact.

On the emulated GPU tensors lie in ordinary host memory: there is nothing to know.
"""

from __future__ import annotations

import torch

from penstock.native import Budget, watch_segments

from . import segments


class TorchMemory:
    """PyTorch's allocator on one device.

    Attributes:
        cuda: Whether there is one; all figures are 0 otherwise.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._device = device
        self._index = device.index or 0

    def count_in(self, budget: Budget) -> None:
        """From here on what is seen of it counts there, and what it caches is given back for it."""
        if not self.cuda:
            return
        self.empty_cache()
        segments.expand()
        watch_segments()
        budget.count_torch(self._index)
        budget.set_reclaim(self.empty_cache)

    def leave(self, budget: Budget) -> None:
        """It counts nowhere any more."""
        if self.cuda:
            budget.leave_torch(self._index)
            segments.restore()

    def held(self) -> int:
        """Bytes that it holds, cached ones included."""
        return torch.cuda.memory_reserved(self._device) if self.cuda else 0

    def live(self) -> int:
        """Bytes of tensors."""
        return torch.cuda.memory_allocated(self._device) if self.cuda else 0

    def free(self) -> int:
        """Bytes of the device that nobody has, by the driver's figure."""
        return torch.cuda.mem_get_info(self._device)[0] if self.cuda else 0

    def empty_cache(self) -> None:
        """Give back what no tensor lies in."""
        if self.cuda:
            torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize(self._device)
