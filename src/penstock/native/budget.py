# SPDX-License-Identifier: Apache-2.0
"""One budget for all that a device holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .api import INTERFACE, new
from .handle import Handle
from .library import check, library
from .pager import Pager


@dataclass(frozen=True, slots=True)
class Shares:
    """Who has what of a budget, in bytes.

    Attributes:
        limit: The budget.
        pagers: What pagers may hold.
        others: What others do.
        others_peak: The most that they did since new_peak().
    """

    limit: int
    pagers: int
    others: int
    others_peak: int

    @property
    def free(self) -> int:
        """What nobody has."""
        return max(0, self.limit - self.pagers - self.others)


def watch_segments() -> bool:
    """See what PyTorch's own allocator maps into expandable segments from here on, if it can be."""
    return bool(library().penstock_torch_watch_segments())


class Budget(Handle):
    """Bytes of device memory that pagers share with others; see penstock/budget.h.

    Args:
        limit: Bytes.
    """

    _prefix, _gone = "penstock_budget", "the budget has been closed"

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._open(self._lib.penstock_budget_create, limit)

    def set_limit(self, limit: int) -> None:
        """Beyond a lower limit nothing more is given, until enough has been given back."""
        check(self._lib.penstock_budget_set_limit(self.handle, limit))

    def join(self, pager: Pager) -> None:
        """The pager's budget is a part of this one from here on."""
        check(self._lib.penstock_budget_join(self.handle, pager.handle))

    def leave(self, pager: Pager) -> None:
        """It is so no more."""
        check(self._lib.penstock_budget_leave(self.handle, pager.handle))

    def take(self, size: int) -> None:
        """Count memory of others; pages that are not in use leave for it.

        Raises:
            OutOfMemory: If it does not fit beside what is in use; nothing is taken.
        """
        check(self._lib.penstock_budget_take(self.handle, size))

    def put_back(self, size: int) -> None:
        """Memory of others that was taken is free again."""
        check(self._lib.penstock_budget_put_back(self.handle, size))

    def make_room(self, size: int, but: Pager | None = None) -> None:
        """Let pages of all pagers but one leave until so much is free.

        Raises:
            OutOfMemory: If that is not enough.
        """
        keep = None if but is None else but.handle
        check(self._lib.penstock_budget_make_room(self.handle, size, keep))

    def shares(self) -> Shares:
        """Who has what now."""
        use = new("budget_use")
        check(self._lib.penstock_budget_get_use(self.handle, use))
        return Shares(use.limit, use.pagers, use.others, use.others_peak)

    def count_torch(self, device: int) -> None:
        """What torch's allocator holds on this device counts here from here on.

        Of PyTorch's own those segments that watch_segments() sees.
        """
        check(self._lib.penstock_torch_count_in(device, self.handle))

    def leave_torch(self, device: int) -> None:
        """It counts here no more."""
        check(self._lib.penstock_torch_count_in(device, None))

    def new_peak(self) -> None:
        """Have others_peak told from now on."""
        check(self._lib.penstock_budget_new_peak(self.handle))

    def set_reclaim(self, reclaim: Callable[[], None]) -> None:
        """Have this called where a use finds no room, with no lock of the library's held."""
        self._reclaim = INTERFACE.callbacks["penstock_reclaim"](lambda _: reclaim())
        check(self._lib.penstock_budget_set_reclaim(self.handle, self._reclaim, None))
