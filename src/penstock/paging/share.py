# SPDX-License-Identifier: Apache-2.0
"""One attachment's part in the budget of its GPU (manager.py).

What is decided here is how much a model's pages get ahead of time, at the beginning of a pass: what
is left beside the tensors that passes of its kind were seen to need. A model that runs twice in a
row takes the room of those that rest. Room that would be taken back before the same part of the
model runs again is left alone: what comes in for it has to come in for this pass anyway, and to
hand memory over takes time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import OutOfMemory
from penstock.native import Pager

from .pass_order import Key

if TYPE_CHECKING:
    from .contracts import Memory
    from .manager import Manager

# What shrinks by a little each time, as beside a cache that grows, shrinks by so many times that at
# once, up to AHEAD of the budget: each time there is a new plan.
TIMES_AHEAD = 8
AHEAD = 1 / 64
SETTLING = 4  # the first passes may still load kernels and grow workspaces
PASSES_SEEN = 4  # that a need may fall by: what lives beside them differs from pass to pass
MOST_NEEDS = 256  # kinds of passes that are remembered
STEADY = 4  # passes whose room did not fall, before what was given up ahead is taken back


@dataclass(slots=True)
class Need:
    """What tensors of one kind of pass needed.

    Attributes:
        bytes: At the most, beyond those that lived before.
        size: Elements of the inputs.
        live: Bytes of those that lived before, the last time.
        loose: It may be less: memory that was cached before the pass covered it, or nearly.
        passes: How many there were.
        recent: The most of those since the last PASSES_SEEN.
    """

    bytes: int
    size: int
    live: int
    loose: bool
    passes: int = 0
    recent: int = 0

    def saw(self, nbytes: int) -> None:
        """A pass needed no more than this.

        The first one's need has workspaces in it that live ever after.
        """
        self.recent = max(self.recent, nbytes)
        self.passes += 1
        if self.passes % PASSES_SEEN == 0:
            self.bytes, self.recent = min(self.bytes, self.recent), 0


class Share:
    """One attachment's part in its manager's budget.

    Attributes:
        pager: What pages its blocks.
        bytes: The budget that it brings along.
        name: Of the model, for messages.
        fixed: Bytes of its pages that are counted as memory of others: it cannot give any up.
        in_a_row: Passes without one of another model in between.
    """

    def __init__(self, manager: Manager, pager: Memory, nbytes: int, name: str) -> None:
        self.pager = pager
        self.bytes = nbytes
        self.name = name
        self.fixed = 0
        self.in_a_row = 0
        self.whole = 0  # bytes that all pages would take
        self._manager = manager
        self._needs: OrderedDict[Key, Need] = OrderedDict()
        self._latest: Key = ()  # kind of pass
        self._live = self._held = 0  # by tensors, and by their allocator, when the pass began
        self._trimmed = False
        self._ahead = 0  # bytes given up beyond need, not to be taken back at once
        self._had = 0  # that the last pass began with
        self._room = self._steady = 0  # of the last pass, and how many have had no less

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
        self.whole = 0
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

    def _need(self, key: Key, size: int) -> int | None:
        """Bytes that tensors will need beyond those that live already; None: nobody knows."""
        need = self._needs.get(key)
        if need is not None:
            return need.bytes
        if not self._needs:
            return None
        nearest = min(self._needs.values(), key=lambda need: abs(need.size - size))
        return int(nearest.bytes * max(1.0, size / max(1, nearest.size)))

    def _coming(self, live: int) -> int:
        """Bytes of tensors, at the most, from the next pass to that of the same part again.

        Those of other models on the device are among them; 0: nobody knows.

        Args:
            live: Bytes of those that live now.
        """
        most = 0
        for share, key in self._manager.order.coming():
            need = None if share is None else share._needs.get(key)
            if need is None:
                break
            most = max(most, max(live, need.live) + need.bytes)
        return most

    def begins(self, key: Key, size: int, *, first: Callable[[], int], whole: int) -> None:
        """A pass begins: size the pages for it.

        Args:
            key: What tells passes apart: the part that is called first, then the shapes of its
                inputs.
            size: Elements of the inputs, by which the need of the nearest key is scaled up.
            first: Tells the bytes for the pages while nobody knows what tensors will need.
            whole: Bytes that all pages would take.
        """
        manager = self._manager
        manager.turn_to(self)
        need, known = self._need(key, size), self._needs.get(key)
        manager.order.follows((self, key))
        self._latest = key
        manager.expect(seen=known is not None and known.passes >= 2)
        self._live, self._held, has = manager.live(), manager.held(), self.has()
        coming = self._coming(self._live)
        wanted, expected = whole, self._held
        if need is None:
            wanted = min(whole, first())
        else:
            surplus = self._held - self._live
            loose = known is not None and known.loose
            wants = max(0 if loose else need, coming - self._live)
            self._trimmed = has < whole and surplus - wants > manager.slack
            if self._trimmed:
                manager.torch.empty_cache()
                self._held = manager.held()
            expected = max(self._held, self._live + need)
        self.whole = whole
        if self.in_a_row < 2:
            wanted = min(wanted, manager.fair_to(self, max(expected, coming)))
        room = manager.room_for(has, expected)
        if wanted > room:
            manager.take_from_others(self, wanted - has + expected - self._held)
            room = manager.room_for(has, expected)
        pages = min(wanted, room)
        if coming and pages > has:
            left = manager.room_for(has, max(self._held, coming))
            pages = max(has, min(pages, left))
        self._fit(pages, has)
        manager.new_peak()

    def join_pieces(self) -> None:
        """The largest tensors of a pass come next, and what is cached lies in pieces: it goes back.

        In the first pass, after which memory stays where it is, and where it is made anew in each.
        Else that costs the launching thread more than the bytes do.
        """
        manager, need = self._manager, self._needs.get(self._latest)
        if not self.whole:
            return  # a backward may begin when the model has been detached
        held = manager.held()
        anew = need is None or self._live + need.bytes - held > manager.slack
        if anew and self.has() < self.whole and held - manager.live() > manager.grain:
            manager.torch.empty_cache()

    def shrink(self, least: int) -> None:
        """Give back what the budget has no room for any more, down to so many bytes."""
        has = self.has()
        room = self._manager.room_for(has, self._manager.held())
        if has > room:
            self._manager.torch.empty_cache()
            room = self._manager.room_for(has, self._manager.held())
            self.resize(max(least, min(has, room)))

    def _fit(self, size: int, has: int) -> None:
        """Resize the pages, unless little is gained."""
        manager = self._manager
        had = max(has, self._had)  # pages may have left for tensors since
        self._steady = self._steady + 1 if size >= self._room else 0
        self._room = size
        if self._steady >= STEADY:
            self._ahead = 0
        if size < min(had, self.whole):
            most = int(manager.bytes * AHEAD) // manager.grain * manager.grain
            self._ahead = min(TIMES_AHEAD * (had - size), most)
            size -= self._ahead
        elif has < size < min(self.whole, has + self._ahead + manager.grain):
            size = has
        else:
            self._ahead = 0
        if size != has:
            # Where it cannot be, uses get what is free when they begin.
            with suppress(OutOfMemory):
                self.resize(max(size, self.pager.smallest()))
        self._had = self.has()

    def ends(self, key: Key, size: int) -> None:
        """The pass is over: what its tensors needed is known."""
        manager = self._manager
        peak = manager.peak()
        grew = peak > self._held
        known = self._needs.pop(key, None)
        if known is None or grew or self._trimmed:
            passes = 0 if known is None else known.passes
            # PyTorch makes a little more for small tensors, whatever it has cached for large ones.
            little = known is None and peak - self._held <= manager.slack < self._held - self._live
            loose = not self._trimmed and (not grew or little)
            known = Need(max(0, peak - self._live), size, self._live, loose, passes)
        known.live = self._live
        known.saw(max(0, peak - self._live))
        self._needs[key] = known
        if len(self._needs) > MOST_NEEDS:
            self._needs.popitem(last=False)
        settling = not manager.shown or self.in_a_row <= SETTLING
        manager.shown = True
        if grew or self._trimmed or settling:
            manager.refresh()
        self._trimmed = False
