# SPDX-License-Identifier: Apache-2.0
"""The one manager of a GPU's memory: a budget that weights and everything else draw on.

It owns a native budget (penstock/budget.h) that the pagers of all attached models have joined and
that PyTorch's allocator is counted in, so that pages leave whenever tensors need the room, and a
use gets whatever is free. How much a model's pages get ahead of time its share says (share.py).
Models that run in turn have room by their size: every split costs the same in bytes that must
cross, and by this one each has copies to hide behind its own compute.

The budget is the sum of what the attachments were given. It covers all device memory that the
process takes beyond its CUDA context: pages, PyTorch's cache, and what the driver holds for kernels
and libraries. That nobody counts; it is taken off the limit, by what the driver says that the
process has.

Thread rule: any thread; one lock a manager, never held while a pass runs.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import OutOfMemory
from penstock.native import Budget, Device, Pager
from penstock.units import MIB, format_bytes

from .emulated_memory import EmulatedMemory
from .pass_order import PassOrder
from .torch_memory import TorchMemory

if TYPE_CHECKING:
    from .share import Share

# Kernels and library handles, where they cannot be measured: 70 MiB on an H200.
MODULES = 96 * MIB
MARGIN = 1 / 64  # of the budget, for what the driver takes between two looks; at most MODULES
FIRST_MARGIN = 1 / 16  # before a pass has shown it
SEEN_MARGIN = 1 / 256, 16 * MIB  # a pass like it has run twice, so that its kernels are there
SLACK = 1 / 32  # of the budget: what is cached beyond need before it is given back
NO_LIMIT = 1 << 62
LINK_BYTES = 32 * MIB  # of the copies that measure the link: 0.6 ms each


def kind_of(value: Any) -> Any:
    """What sets an input apart, for the way that a pass takes; its size and values do not."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    return value if value is None or isinstance(value, bool | str) else type(value)


def extent_of(tensor: torch.Tensor) -> torch.Size | int:
    """What sets an input apart, for the memory that a pass takes: of a nested one its elements."""
    return tensor.numel() if tensor.is_nested else tensor.shape


class Manager:
    """The budget of one device.

    Attributes:
        budget: The native budget.
        torch: PyTorch's allocator there.
        grain: The least by which pages are resized.
        shown: Whether a pass has run since the last attachment came, so that what the driver takes
            for kernels has been seen.
        bytes: What all attachments bring along.
        order: Of their passes.

    Args:
        device: Penstock's view of the device.
        torch_device: PyTorch's.
    """

    def __init__(self, device: Device, torch_device: torch.device) -> None:
        self.budget = Budget(0)
        self.torch: TorchMemory | EmulatedMemory
        if torch_device.type == "cuda":
            self.torch, self.grain = TorchMemory(torch_device), 2 * MIB
        else:
            self.torch, self.grain = EmulatedMemory(), device.info()["granularity"]
        self._lock = threading.RLock()  # a collection may drop an attachment anywhere
        self._shares: list[Share] = []
        self.bytes = 0
        self.order = PassOrder()
        self._latest: Share | None = None
        self._before = self._earlier_peak = 0
        self.shown = self._seen = False
        self._broken_off = False  # a pass ended for want of memory
        self._link: tuple[float, float] | None = None
        weakref.finalize(self, self.budget.close)

    @property
    def slack(self) -> int:
        """Bytes that are little beside the budget."""
        return max(self.grain, int(self.bytes * SLACK))

    def held(self) -> int:
        """Bytes that PyTorch's allocator has, as far as they are counted."""
        return self.budget.shares().others - self._fixed()

    def live(self) -> int:
        """Bytes of tensors in what is counted, which what was there before is not."""
        return max(0, self.torch.live() - self.before())

    def before(self) -> int:
        """Bytes of PyTorch's allocator that it had before anything was counted."""
        return max(0, self.torch.held() - self.held())

    def new_peak(self) -> None:
        """Have peak() told from now on."""
        self._earlier_peak = 0
        self.budget.new_peak()

    def peak(self) -> int:
        """The most of them since new_peak()."""
        return max(self._earlier_peak, self.later_peak())

    def split_peak(self) -> int:
        """Have later_peak() told from now on; the peak so far."""
        self._earlier_peak = self.peak()
        self.budget.new_peak()
        return self._earlier_peak

    def later_peak(self) -> int:
        """The most of them since split_peak(), or new_peak()."""
        return self.budget.shares().others_peak - self._fixed()

    def room_for(self, has: int, expected: int) -> int:
        """Bytes for the pages of one that has so many, while tensors are to have `expected`."""
        shares = self.budget.shares()
        return shares.limit - (shares.pagers + self._fixed() - has) - expected

    def fair_to(self, share: Share, expected: int) -> int:
        """Bytes for the pages of one of several, by what all pages of each would take."""
        total = sum(each.whole for each in self._shares)
        room = max(0, self.budget.shares().limit - expected)
        return room * share.whole // max(1, total)

    def _fixed(self) -> int:
        return sum(share.fixed for share in self._shares)

    # ---- Who there is ----------------------------------------------------------------------

    def prepare(self, nbytes: int) -> None:
        """An attachment that brings so many bytes is about to be made: count from here."""
        with self._lock:
            if self.bytes == 0 and self.torch.cuda:
                self.torch.synchronize()
                self.torch.empty_cache()
                self._before = self.torch.taken(0) - self.torch.held()
            first = self.bytes == 0
            self.bytes += nbytes
            self.shown = self._seen = False
            if first:  # what is there already counts whatever the limit
                self.budget.set_limit(NO_LIMIT)
                self.torch.count_in(self.budget)
            self.refresh()

    def enter(self, share: Share, smallest: int) -> None:
        """Its pages count from here on.

        Raises:
            OutOfMemory: If there is no room beside what is in use; its largest layer needs
                `smallest` bytes.
        """
        with self._lock:
            self._shares.append(share)  # its pages are there already
            try:
                self._enter(share, smallest)
            except BaseException:
                self._shares.remove(share)
                raise

    def _enter(self, share: Share, smallest: int) -> None:
        self.refresh()
        with suppress(OutOfMemory):
            return share.enter()
        gc.collect()  # models that nobody has any more are in cycles, as a rule
        self.torch.empty_cache()
        self.refresh()
        try:
            share.enter()
        except OutOfMemory as error:
            raise OutOfMemory(
                f"the largest layer needs {format_bytes(smallest)}, and {self.who_has_what()}",
                remedy="free what is not needed (del, gc.collect()), or a larger gpu_memory",
                needed_bytes=smallest,
                budget_bytes=share.bytes,
            ) from error

    def leave(self, share: Share | None, nbytes: int) -> None:
        """An attachment has gone, or was not made; its pager is still there."""
        with self._lock:
            if share is not None and share in self._shares:
                share.leave()
                self._shares.remove(share)
                self.order.forget(share)
            if self._latest is share:
                self._latest = None
            self.bytes -= nbytes
            if self.bytes <= 0:
                self.torch.leave(self.budget)
            self.refresh()

    def resize(self, share: Share, nbytes: int) -> None:
        """Let an attachment bring along another number of bytes."""
        with self._lock:
            self.bytes += nbytes - share.bytes
            share.bytes = nbytes
            self.refresh()

    def turn_to(self, share: Share) -> None:
        """A pass of this one begins."""
        if self._broken_off:  # what it made may be in cycles with its error
            self._broken_off = False
            gc.collect()
        share.in_a_row = share.in_a_row + 1 if self._latest is share else 1
        self._latest = share

    def take_from_others(self, share: Share, nbytes: int) -> None:
        """Have so much free, or what those that rest can give up."""
        if self.budget.shares().free >= nbytes or len(self._shares) < 2:
            return
        with suppress(OutOfMemory):
            own = share.pager
            self.budget.make_room(nbytes, own if isinstance(own, Pager) else None)

    # ---- The limit -------------------------------------------------------------------------

    def expect(self, *, seen: bool) -> None:
        """A pass begins; seen: the driver has what those like it need."""
        if seen != self._seen:
            self._seen = seen
            self.refresh()

    def link(self, device: Device) -> tuple[float, float]:
        """Page-locked copy speed in and out, decimal GB/s, measured once."""
        with self._lock:  # threads that measured at once would not find the room
            if self._link is None:
                size = min(LINK_BYTES, device.memory()[0] // 2)
                self._link = device.measure_link(max(size, self.grain), 5)
            return self._link

    def refresh(self) -> None:
        """Take what nobody counts off the limit."""
        self.budget.set_limit(max(0, self.bytes - self.uncounted()))

    def uncounted(self) -> int:
        """Bytes that the process has taken since the first attachment, and nobody has counted."""
        if not self.torch.cuda or self.bytes <= 0:
            return 0
        if any(share.fixed for share in self._shares):
            # Managed memory whose pages have left stays the driver's until something asks for it.
            return self.before() + MODULES
        stats = [share.pager.stats() for share in self._shares]
        pages = sum(int(each["device_bytes"]) for each in stats)
        locked = sum(int(each.get("host_bytes", 0)) for each in stats)
        used = self.torch.taken(locked) - self._before
        share, most = MARGIN if self.shown else FIRST_MARGIN, MODULES
        if self._seen:
            share, most = SEEN_MARGIN
        return max(0, used - pages - self.held()) + min(most, int(self.bytes * share))

    def explain(self, error: BaseException | None) -> None:
        """Tell PyTorch's error of a pass what it cannot: who has the memory, what cannot grow."""
        self._broken_off |= isinstance(error, torch.OutOfMemoryError | OutOfMemory)
        if type(error) is RuntimeError and "storage that is not resizable" in str(error):
            error.args = (f"{error}; {_GROWS}",)
        if isinstance(error, torch.OutOfMemoryError) and error.args:
            error.args = (f"{error.args[0]}\n{self.who_has_what()}", *error.args[1:])

    def explained(self, error: OutOfMemory) -> OutOfMemory:
        """The same error, with who has the memory."""
        return OutOfMemory(
            f"{error.what}; {self.who_has_what()}",
            remedy=error.remedy,
            needed_bytes=error.needed_bytes,
            budget_bytes=error.budget_bytes,
        )

    def who_has_what(self) -> str:
        """The budget, and who has how much of it: for an error."""
        models = ", ".join(
            f"{format_bytes(int(share.pager.stats()['device_bytes']))} pages of {share.name}"
            for share in self._shares
        )
        before = self.before()  # which is nobody else's
        driver = max(0, self.uncounted() - before)
        return (
            f"of a gpu_memory of {format_bytes(self.bytes)}, PyTorch's allocator has "
            f"{format_bytes(self.held() + before)}, the driver {format_bytes(driver)}"
            + (f", {models}" if models else "")
        )


_GROWS = (
    "an attached model's tensors cannot grow where they are, as those of observers do in their "
    "first pass; try: a pass of the model before it is attached"
)
_managers: dict[int, Manager] = {}
_managers_lock = threading.Lock()
os.register_at_fork(after_in_child=_managers.clear)  # they are the parent's


def manager_of(device: Device, torch_device: torch.device) -> Manager:
    """The manager of a device; an emulated GPU has one for each time it is opened."""
    if torch_device.type != "cuda":
        return Manager(device, torch_device)
    with _managers_lock:
        index = torch_device.index or 0
        if index not in _managers:
            _managers[index] = Manager(device, torch_device)
        return _managers[index]
