# SPDX-License-Identifier: Apache-2.0
"""The one manager of a GPU's memory: a budget that weights and everything else draw on.

It owns a native budget (penstock/budget.h) that the pagers of all attached models have joined and
that PyTorch's allocator is counted in, so that pages leave whenever tensors need the room, and a
use gets whatever is free. What is decided here is only how much each model's pages get ahead of
time, at the beginning of a pass: what is left beside the tensors that passes of its kind were seen
to need. A model that runs twice in a row takes the room of those that rest. Models that run in turn
have room by their size: every split costs the same in bytes that must cross, and by this one each
has copies to hide behind its own compute.

The budget is the sum of what the attachments were given. It covers all device memory that the
process takes beyond its CUDA context: pages, PyTorch's cache, and what the driver holds for kernels
and libraries. That nobody counts; it is taken off the limit, by the driver's free-memory figure.

Thread rule: any thread; one lock a manager, never held while a pass runs.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import OutOfMemory
from penstock.native import Budget, Device, Pager
from penstock.units import MIB, format_bytes

from .emulated_memory import EmulatedMemory
from .torch_memory import TorchMemory

if TYPE_CHECKING:
    from .contracts import Memory

# Kernels and library handles, where they cannot be measured: 70 MiB on an H200.
MODULES = 96 * MIB
MARGIN = 1 / 64  # of the budget, for what the driver takes between two looks; at most MODULES
FIRST_MARGIN = 1 / 16  # before a pass has shown it
SLACK = 1 / 32  # of the budget: what is cached beyond need before it is given back
SETTLING = 4  # the first passes may still load kernels and grow workspaces
MOST_NEEDS = 256  # kinds of passes that are remembered


def kind_of(value: Any) -> Any:
    """What sets an input apart, for the way that a pass takes; its size and values do not."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim()
    return value if value is None or isinstance(value, bool | str) else type(value)


@dataclass(slots=True)
class Need:
    """What tensors of one kind of pass needed.

    Attributes:
        bytes: At the most, beyond those that lived before.
        size: Elements of the inputs.
        loose: It may be less: memory that was cached before the pass covered all of it.
    """

    bytes: int
    size: int
    loose: bool


class Share:
    """One attachment's part in its manager's budget.

    Attributes:
        pager: What pages its blocks.
        bytes: The budget that it brings along.
        name: Of the model, for messages.
        fixed: Bytes of its pages that are counted as memory of others: it cannot give any up.
        standing: Whether everything stays on the device, so that no use is declared.
        stand_up: Gives what has uses declared again, for as long as the attachment lives.
        in_a_row: Passes without one of another model in between.
    """

    def __init__(self, manager: Manager, pager: Memory, nbytes: int, name: str) -> None:
        self.pager = pager
        self.bytes = nbytes
        self.name = name
        self.fixed = 0
        self.standing = False
        self.stand_up: Callable[[], Callable[[], None] | None] = lambda: None
        self.in_a_row = 0
        self.whole = 0  # bytes that all pages would take
        self._manager = manager
        self._needs: OrderedDict[Hashable, Need] = OrderedDict()
        self._live = self._held = 0  # by tensors, and by their allocator, when the pass began
        self._trimmed = False

    def enter(self) -> None:
        """Its pages count from here on."""
        size, budget = self.has(), self._manager.budget
        if isinstance(self.pager, Pager):
            if budget.shares().free < size:
                budget.make_room(size)
            budget.join(self.pager)
        else:
            budget.take(size)
            self.fixed = size

    def leave(self) -> None:
        """They count no more."""
        if isinstance(self.pager, Pager):
            self._manager.budget.leave(self.pager)
        else:
            self._manager.budget.put_back(self.fixed)
            self.fixed = 0

    def has(self) -> int:
        """Bytes that its pages may take."""
        return int(self.pager.stats()["budget"])

    def resize(self, size: int) -> None:
        """Give the pages so many bytes.

        Raises:
            OutOfMemory: If that is too little for them, or there is not as much.
        """
        if not self.fixed:
            self.pager.resize(size)
            return
        self._manager.budget.put_back(self.fixed)
        try:
            self.pager.resize(size)
        finally:
            self.fixed = self.has()
            self._manager.budget.take(self.fixed)

    # ---- Passes ----------------------------------------------------------------------------

    def _need(self, key: Hashable, size: int) -> int | None:
        """Bytes that tensors will need beyond those that live already; None: nobody knows."""
        need = self._needs.get(key)
        if need is not None:
            return need.bytes
        if not self._needs:
            return None
        nearest = min(self._needs.values(), key=lambda need: abs(need.size - size))
        return int(nearest.bytes * max(1.0, size / max(1, nearest.size)))

    def begins(self, key: Hashable, size: int, *, first: Callable[[], int], whole: int) -> None:
        """A pass begins: size the pages for it.

        Args:
            key: What tells passes apart: the part that is called, and the shapes of its inputs.
            size: Elements of the inputs, by which the need of the nearest key is scaled up.
            first: Tells the bytes for the pages while nobody knows what tensors will need.
            whole: Bytes that all pages would take.
        """
        manager = self._manager
        manager.turn_to(self)
        self._live, self._held, has = manager.torch.live(), manager.held(), self.has()
        need, known = self._need(key, size), self._needs.get(key)
        wanted, expected = whole, self._held
        if need is None:
            wanted = min(whole, first())
        else:
            surplus = self._held - self._live
            loose = known is not None and known.loose
            self._trimmed = has < whole and surplus - (0 if loose else need) > manager.slack
            if self._trimmed:
                manager.torch.empty_cache()
                self._held = manager.held()
            expected = max(self._held, self._live + need)
        self.whole = whole
        if self.in_a_row < 2:
            wanted = min(wanted, manager.fair_to(self, expected))
        room = manager.room_for(has, expected)
        if wanted > room:
            manager.take_from_others(self, wanted - has + expected - self._held)
            room = manager.room_for(has, expected)
        self._fit(min(wanted, room), has)
        manager.budget.new_peak()

    def shrink(self, least: int) -> None:
        """Give back what the budget has no room for any more, down to so many bytes."""
        has = self.has()
        room = self._manager.room_for(has, self._manager.held())
        if has > room:
            self._manager.torch.empty_cache()
            room = self._manager.room_for(has, self._manager.held())
            self.resize(max(least, min(has, room)))

    def _fit(self, size: int, has: int) -> None:
        if has <= size < min(has + self._manager.grain, size + 1):
            return
        # Where it cannot be, uses get what is free when they begin.
        with suppress(OutOfMemory):
            self.resize(max(size, self.pager.smallest()))

    def ends(self, key: Hashable, size: int) -> None:
        """The pass is over: what its tensors needed is known."""
        manager = self._manager
        peak = manager.peak()
        grew = peak > self._held
        known = self._needs.pop(key, None)
        if known is None or grew or self._trimmed:
            known = Need(max(0, peak - self._live), size, loose=not (grew or self._trimmed))
        self._needs[key] = known
        if len(self._needs) > MOST_NEEDS:
            self._needs.popitem(last=False)
        settling = not manager.shown or (self.in_a_row <= SETTLING and not self.standing)
        manager.shown = True
        if grew or self._trimmed or settling:
            manager.refresh()
        self._trimmed = False

    # ---- Standing --------------------------------------------------------------------------

    def stand(self) -> bool:
        """Give nothing up from here on, if there is room to spare; whether it is so."""
        manager = self._manager
        if not isinstance(self.pager, Pager) or manager.budget.shares().free < manager.slack:
            return False
        manager.budget.hold(self.pager, True)
        self.standing = True
        return True

    def rise(self) -> None:
        """Pages may leave again."""
        if self.standing:
            assert isinstance(self.pager, Pager)
            self.standing = False
            self._manager.budget.hold(self.pager, False)

    def must_rise(self, key: Hashable) -> bool:
        """Whether a pass may need room that only pages of its own could give.

        If not, it begins, and what it needs is learned: a cache that grows needs more each time.
        """
        manager = self._manager
        need = self._needs.get(key)
        if need is None:
            return True
        self._live, self._held = manager.torch.live(), manager.held()
        more = max(0, self._live + need.bytes - self._held)
        if manager.budget.shares().free < more + manager.slack // 2:
            return True
        manager.budget.new_peak()
        return False


class Manager:
    """The budget of one device.

    Attributes:
        budget: The native budget.
        torch: PyTorch's allocator there.
        grain: The least by which pages are resized.
        shown: Whether a pass has run since the last attachment came, so that what the driver takes
            for kernels has been seen.

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
        self._bytes = 0
        self._latest: Share | None = None
        self._before = 0
        self.shown = False
        weakref.finalize(self, self.budget.close)

    @property
    def slack(self) -> int:
        """Bytes that are little beside the budget."""
        return max(self.grain, int(self._bytes * SLACK))

    def held(self) -> int:
        """Bytes that PyTorch's allocator has, as far as they are counted."""
        return self.budget.shares().others - self._fixed()

    def peak(self) -> int:
        """The most of them since the budget's new_peak()."""
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
            if self._bytes == 0 and self.torch.cuda:
                self.torch.synchronize()
                self.torch.empty_cache()
                self._before = self.torch.free() + self.torch.held()
            first = self._bytes == 0
            self._bytes += nbytes
            self.shown = False
            if first:  # what is there already counts whatever the limit
                self.budget.set_limit(self._before + nbytes)
                self.torch.count_in(self.budget)
            self.refresh()

    def enter(self, share: Share, smallest: int) -> None:
        """Its pages count from here on.

        Raises:
            OutOfMemory: If there is no room beside what is in use; its largest layer needs
                `smallest` bytes.
        """
        with self._lock:
            self.refresh()
            try:
                share.enter()
            except OutOfMemory:
                gc.collect()  # models that nobody has any more are in cycles, as a rule
                self.torch.empty_cache()
                self.refresh()
                self._enter_at_last(share, smallest)
            self._shares.append(share)

    def _enter_at_last(self, share: Share, smallest: int) -> None:
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
            if self._latest is share:
                self._latest = None
            self._bytes -= nbytes
            if self._bytes <= 0:
                self.torch.leave(self.budget)
            self.refresh()

    def resize(self, share: Share, nbytes: int) -> None:
        """Let an attachment bring along another number of bytes."""
        with self._lock:
            self._bytes += nbytes - share.bytes
            share.bytes = nbytes
            self.refresh()

    def turn_to(self, share: Share) -> None:
        """A pass of this one begins."""
        share.in_a_row = share.in_a_row + 1 if self._latest is share else 1
        self._latest = share

    def take_from_others(self, share: Share, nbytes: int) -> None:
        """Have so much free, or what those that rest can give up."""
        if self.budget.shares().free >= nbytes or len(self._shares) < 2:
            return
        for other in list(self._shares):
            stand_up = other.stand_up() if other is not share and other.standing else None
            if stand_up is not None:
                stand_up()
        with suppress(OutOfMemory):
            own = share.pager
            self.budget.make_room(nbytes, own if isinstance(own, Pager) else None)

    # ---- The limit -------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take what nobody counts off the limit."""
        self.budget.set_limit(max(0, self._bytes - self.uncounted()))

    def uncounted(self) -> int:
        """Bytes that the process has taken since the first attachment, and nobody has counted."""
        if not self.torch.cuda or self._bytes <= 0:
            return 0
        if any(share.fixed for share in self._shares):
            # Managed memory whose pages have left stays the driver's until something asks for it.
            return max(0, self.torch.held() - self.held()) + MODULES
        pages = sum(int(share.pager.stats()["device_bytes"]) for share in self._shares)
        used = self._before - self.torch.free()
        margin = MARGIN if self.shown else FIRST_MARGIN
        return max(0, used - pages - self.held()) + min(MODULES, int(self._bytes * margin))

    def explain(self, error: BaseException | None) -> None:
        """Tell PyTorch's error of a pass that ends for want of memory who has it."""
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
        # What its segments held before they were counted is nobody else's.
        before = max(0, self.torch.held() - self.held())
        driver = max(0, self.uncounted() - before)
        return (
            f"of a gpu_memory of {format_bytes(self._bytes)}, PyTorch's allocator has "
            f"{format_bytes(self.held() + before)}, the driver {format_bytes(driver)}"
            + (f", {models}" if models else "")
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
