# SPDX-License-Identifier: Apache-2.0
"""How much of a CUDA budget the model's blocks may have: what everything else leaves.

Everything else is what PyTorch's caching allocator has reserved (activations, workspaces) and what
the driver holds beyond it (modules of kernels, library handles), by the driver's own free-memory
figure, counted from the moment of attaching. The CUDA context itself, about half a GiB that no one
can avoid, is not part of the budget. On the emulated GPU activations live in ordinary host memory
and take no room. Several attachments on one device share what is beside the blocks: it is charged
to what the others leave of their budgets first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.native import Device
from penstock.units import MIB

from . import segments, torch_limit

# PyTorch takes segments of 2 MiB and more; repeated passes of one shape do not grow.
MARGIN = 8 * MIB
# Kernels and library handles, where they cannot be measured: 70 MiB on an H200.
MODULES = 96 * MIB
# What PyTorch's allocator may reserve for every byte that is allocated at the peak; beyond it,
# trim() takes memory back.
FRAGMENTED = 1.1


class Room:
    """Follows a device's memory from the moment it is made.

    Args:
        device: Penstock's view of the device.
        torch_device: PyTorch's.
        budget: Bytes for everything.
        slack: Share of what PyTorch's allocator has reserved that it may grow by later.
    """

    def __init__(
        self, device: Device, torch_device: torch.device, budget: int, *, slack: float = 0.0
    ) -> None:
        self.budget = budget
        self._slack = slack
        self._needed = 0  # by PyTorch's allocator, at the peak
        self.cuda = torch_device.type == "cuda"
        self._device = device
        self._torch_device = torch_device
        if self.cuda:
            torch.cuda.synchronize(torch_device)
            torch.cuda.empty_cache()
            self._free_at_start = device.memory()[0]
            self._reserved_at_start = torch.cuda.memory_reserved(torch_device)
            self._others_at_start = torch_limit.others_held(torch_device, self)
            torch_limit.enter(torch_device, self, lambda: self.held())
            segments.expand()
        self._lifted = not self.cuda
        self.held: Callable[[], int] = int  # bytes that the blocks have; 0 before there are any

    def used(self) -> int:
        """Bytes of device memory that this process uses, without its context and others' blocks."""
        if not self.cuda:
            total, free = self._device.memory()[1], self._device.memory()[0]
            return total - free
        # A model that lay on the device may have left since: more is free than at the start.
        before = self._free_at_start + self._reserved_at_start + self._others_at_start
        others = torch_limit.others_held(self._torch_device, self)
        return max(0, before - others - self._device.memory()[0])

    def reserved(self) -> int:
        """Bytes that PyTorch's allocator holds."""
        return torch.cuda.memory_reserved(self._torch_device) if self.cuda else 0

    def for_blocks(self, held: int, *, by_driver: bool = True) -> int:
        """Bytes of the budget left for blocks, of which `held` are in their hands now.

        Args:
            held: Bytes.
            by_driver: Whether the driver's free memory tells. Under managed memory it does not:
                device memory whose pages have left stays with the driver until something else
                asks for it (measured on an H200: 4 GiB of sets in a budget of 1 GiB showed 4 GiB).
        """
        if not self.cuda:
            return self.budget
        reserved = self.reserved()
        margin = MARGIN + int(self._slack * max(reserved, self._needed))
        margin += max(0, self._needed - reserved)
        spare = torch_limit.others_spare(self._torch_device, self)
        beside = self.used() - held if by_driver else reserved + MODULES
        return self.budget - max(0, beside - spare) - margin

    def forget_peak(self) -> None:
        """What has been allocated so far says nothing about what comes."""
        if self.cuda:
            torch.cuda.synchronize(self._torch_device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._torch_device)

    def trim(self) -> None:
        """Take cached memory back where the cache grew far beyond what was allocated at the peak.

        With room to spare the allocator takes new segments rather than reuse old ones; with less it
        gives cached ones back by itself.
        """
        if not self.cuda:
            return
        most = int(FRAGMENTED * torch.cuda.max_memory_allocated(self._torch_device))
        if self.reserved() > most:
            torch.cuda.empty_cache()
        peak = torch.cuda.max_memory_reserved(self._torch_device)
        self._needed = max(self._needed, min(peak, most))

    def of_driver(self, held: int, *, by_driver: bool = True) -> int:
        """Bytes that neither the blocks, which hold `held`, nor PyTorch's allocator know of.

        Kernels' code, libraries' handles, and page tables: 0.4 GiB beside 75 GiB of page-locked
        memory, some of which came in the first steps.
        """
        return max(0, self.used() - self.reserved() - held) if by_driver else MODULES

    def limit_torch(self, blocks: int, held: int, *, by_driver: bool = True) -> None:
        """Let PyTorch's allocator raise its own error rather than exceed the budget.

        Args:
            blocks: Bytes that the blocks may hold.
            held: Bytes that they do.
            by_driver: As of for_blocks().
        """
        if not self.cuda:
            return
        torch_limit.limit(
            self._torch_device,
            self,
            spare=self.budget - blocks,
            driver=self.of_driver(held, by_driver=by_driver),
            total=self._device.memory()[1],
        )

    def free_torch(self) -> None:
        """Lift the limit; after the last attachment PyTorch's allocator is as it was before."""
        if not self._lifted:
            self._lifted = True
            self.held = int
            torch_limit.leave(self._torch_device, self)
            segments.restore()
