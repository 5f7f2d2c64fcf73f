# SPDX-License-Identifier: Apache-2.0
"""How much of the budget activations get, and so what leaves: weights and state, or activations.

A byte of state that does not stay costs one in and one out, both in backward. A byte of a weight
costs one in in forward, one in in backward, and one out there if it is trained. A byte of an
activation costs one out in forward and one in in backward. So in backward all bytes cost the same,
and in forward state costs nothing, weights the way in, and activations the way out, which go on at
the same time. State leaves first, then; and of weights and activations as many bytes each, which is
when forward takes least.

What tensors need beside activations is not told by anybody, nor when: an operator's workspace is
seen in the peak alone. So the level of memory in use above which activations leave is the room less
a margin, and the margin follows from the peak of the step before. A level that is lower by a byte
makes a peak that is lower by one, if the peak was where the level had been reached; if it was
elsewhere, the level is of no importance to it and may rise until it is. It rises by half of what
the peak has left, and so comes near in a few steps, without one that is out of memory because
other operators are at work where a higher level is reached.

A step has two such levels. What the end of forward takes, logits of a vocabulary and their
gradient, has gone when backward first needs what has left, or computes a region again: from there
on the level follows from the peak since.

Pure: figures in, figures out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from penstock.errors import OutOfMemory
from penstock.units import KIB, format_bytes

FIRST_MARGIN = 1 / 2  # of the room, while nobody knows what operators need: logits of a vocabulary
MOST_MARGIN = 7 / 8
SETTLING = 8  # times that a margin may fall: what goes up and down is not settled by going on
MOST_KINDS = 256


@dataclass(slots=True)
class Margin:
    """Bytes of the room that a level leaves to operators.

    Attributes:
        bytes: How many.
        falls: How often it has fallen.
        risen_from: It and the peak before it rose last; None once it has fallen.
        settled: Whether the latest peak has left it as it was.
    """

    bytes: int
    falls: int = 0
    risen_from: tuple[int, int] | None = None
    settled: bool = False

    def adapt(self, peak: int, room: int, slack: int, *, falls: bool) -> None:
        """Be another one, if the peak was too high, or, with `falls`, could be higher."""
        before = self.bytes
        over = peak - room
        if over > slack:
            if self.risen_from is not None and peak >= self.risen_from[1] - slack:
                self.bytes = self.risen_from[0]  # it was elsewhere: the level is no help
                self.settled = True
                return
            self.risen_from = self.bytes, peak
            self.bytes += over
        elif falls and -over > slack and self.falls < SETTLING:
            self.risen_from = None
            # By half of what is spare: what operators need is most elsewhere at another level.
            self.bytes = max(slack, self.bytes + over // 2)
            self.falls += 1
        self.bytes = min(self.bytes, int(room * MOST_MARGIN))
        self.settled = self.bytes == before


@dataclass(slots=True)
class Kind:
    """What steps of one kind have shown.

    Attributes:
        size: Elements of their inputs.
        margin: Up to where backward needs what has left.
        later: From there on.
        pages: Bytes that weights get at the least.
        early: Bytes that left in the last step.
        whole: Bytes that tensors need when nothing leaves, beyond those that lived before.
        together: Forward passes before a backward.
    """

    size: int
    margin: Margin
    later: Margin
    pages: int = 0
    early: int = 0
    whole: int | None = None
    together: int = 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """The room at one moment, in bytes.

    Attributes:
        total: Of the budget for weights, state and tensors.
        least: Of it that weights and state cannot do without.
        slack: What is little beside it.
    """

    total: int
    least: int
    slack: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that is over, in bytes.

    Attributes:
        before: Of tensors when its last forward began.
        peak: The most of them since.
        watched: Whether activations could leave.
        left: Of activations that did.
        most_saved: The most of activations, wherever they were.
        most_there: The most of them on the device.
        together: Forward passes before a backward.
        left_again: Of what left, what a recomputation in backward had saved.
        peak_first: The peak up to where backward needed what had left, or computed a region again;
            None where it did neither.
        peak_later: The peak from there on; None where nobody knows, as other memory was cached.
    """

    before: int
    peak: int
    watched: bool
    left: int
    most_saved: int
    most_there: int
    together: int
    left_again: int = 0
    peak_first: int | None = None
    peak_later: int | None = None


@dataclass(frozen=True, slots=True)
class Levels:
    """What a pass may have.

    Attributes:
        level: Bytes of tensors above which activations leave.
        later: The same from where backward needs what has left.
        early: Bytes that leave from the beginning on.
        learning: Whether the peak from there on is wanted: what is cached is given back there.
    """

    level: int
    later: int
    early: int
    learning: bool


class Room:
    """The share of activations in one model's budget.

    Args:
        weights: Bytes of its paged weights.
    """

    def __init__(self, weights: int) -> None:
        self._weights = weights
        self._kinds: OrderedDict[Hashable, Kind] = OrderedDict()

    def begins(self, key: Hashable, size: int, bounds: Bounds, live: int) -> Levels | None:
        """A forward begins.

        Args:
            key: What tells kinds of passes apart.
            size: Elements of its inputs.
            bounds: The room.
            live: Bytes of tensors now.

        Returns:
            None where all is known to fit.
        """
        kind = self._kind(key, size, bounds)
        if kind.whole is not None and live + kind.whole * kind.together <= (
            bounds.total - bounds.least
        ):
            return None
        room = self._room(kind, bounds)
        level, later = max(0, room - kind.margin.bytes), max(0, room - kind.later.bytes)
        return Levels(level, later, kind.early, not kind.later.settled)

    def ends(self, key: Hashable, size: int, bounds: Bounds, seen: Seen) -> bool:
        """A step is over; whether what is cached would spoil the next one's peak."""
        kind = self._kind(key, size, bounds)
        kind.together = max(kind.together, seen.together)
        if seen.left == 0:
            kind.whole = max(0, seen.peak - seen.before)
            kind.early = 0
            if not seen.watched:
                return False
        room = self._room(kind, bounds)
        before = room - kind.margin.bytes
        over = seen.peak - room
        if seen.peak_later is not None:
            kind.later.adapt(seen.peak_later, room, bounds.slack, falls=seen.left > 0)
        elif over > bounds.slack:
            kind.later.settled = False
        first = seen.peak if seen.peak_first is None else seen.peak_first
        kind.margin.adapt(first, room, bounds.slack, falls=seen.left > seen.left_again)
        if seen.left:
            self._divide(kind, bounds, seen, spare=max(0, -over))
        # A level that is lower, or higher, has as much more, or less, leave.
        change = before - (self._room(kind, bounds) - kind.margin.bytes)
        forward = seen.left - seen.left_again
        kind.early = max(0, forward + change) if forward else 0
        return over > bounds.slack

    def failed(self, key: Hashable, size: int, bounds: Bounds) -> None:
        """A pass was out of memory: the next one leaves more."""
        kind = self._kind(key, size, bounds)
        kind.whole = None
        for margin in (kind.margin, kind.later):
            margin.falls = SETTLING
            most = int(self._room(kind, bounds) * MOST_MARGIN)
            margin.bytes = min(2 * margin.bytes, most)

    def _room(self, kind: Kind, bounds: Bounds) -> int:
        return max(0, bounds.total - max(bounds.least, kind.pages))

    def _divide(self, kind: Kind, bounds: Bounds, seen: Seen, *, spare: int) -> None:
        """Weights and activations: what both get, so that as much of each leaves."""
        both = max(bounds.least, kind.pages) + seen.most_there + spare
        pages = (self._weights + both - seen.most_saved) // 2
        pages = max(bounds.least, min(pages, self._weights))
        if abs(pages - kind.pages) > bounds.slack:
            kind.pages = pages

    def _kind(self, key: Hashable, size: int, bounds: Bounds) -> Kind:
        kind = self._kinds.get(key)
        if kind is None:
            room = bounds.total - bounds.least
            margin = later = int(room * FIRST_MARGIN)
            if self._kinds:
                nearest = min(self._kinds.values(), key=lambda kind: abs(kind.size - size))
                larger = max(1.0, size / max(1, nearest.size))
                margin, later = (
                    min(int(each.bytes * larger), int(room * MOST_MARGIN))
                    for each in (nearest.margin, nearest.later)
                )
            kind = self._kinds[key] = Kind(size, Margin(margin), Margin(later))
            if len(self._kinds) > MOST_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        return kind


def used_together(needed: int, others: int, budget: int) -> OutOfMemory:
    """What to raise where uses that nest find no room.

    Args:
        needed: Bytes in all.
        others: Bytes of them that are in no blocks.
        budget: Bytes.
    """
    return OutOfMemory(
        f"weights, gradients and optimizer state that are used together need at least "
        f"{format_bytes(needed)}"
        + (f", {format_bytes(others)} of it activations and PyTorch's own" if others else "")
        + f", more than the budget of {format_bytes(budget)}",
        remedy=f'gpu_memory="{-(-needed // KIB)}KiB" or more',
        needed_bytes=needed,
        budget_bytes=budget,
    )
