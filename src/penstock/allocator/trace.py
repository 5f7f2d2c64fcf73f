# SPDX-License-Identifier: Apache-2.0
"""The allocator's events as torch's traces have them, such that memory_viz can go back in time.

memory_viz begins with the segments of a snapshot and undoes event by event; each block of each
moment must lie in a segment of that moment, and it stops with an error where one does not. So
events about segments are told only if undoing them comes out even; if one does not (the oldest
may have been forgotten), the segments stay as they are throughout, and whatever blocks lay
elsewhere gets a segment of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from .frames import FrameTable

ALLOC, FREE_REQUESTED, FREE_COMPLETED, MAP, UNMAP, STITCH, UNSTITCH, OOM = range(8)
# torch's words for them.
ACTIONS = (
    *("alloc", "free_requested", "free_completed"),
    *("segment_map", "segment_unmap", "segment_alloc", "segment_free", "oom"),
)
ALL = frozenset(range(len(ACTIONS)))
OF_BLOCKS = frozenset({ALLOC, FREE_REQUESTED, FREE_COMPLETED})
OF_SEGMENTS = frozenset({MAP, UNMAP, STITCH, UNSTITCH})

Range = tuple[int, int]  # address, size


def retell(
    events: Sequence[Any], segments: Sequence[dict[str, Any]], frames: FrameTable
) -> tuple[list[Range], list[dict[str, Any]]]:
    """The events in torch's form, and the ranges that the snapshot needs beside its segments.

    Args:
        events: The oldest first.
        segments: Of the snapshot, taken after the last event.
        frames: Where the contexts of events point.
    """
    known = [(each["address"], each["total_size"]) for each in segments]
    idle = _idle_ranges(events, known)
    if _comes_out_even(events, [*known, *idle]):
        return idle, _told(events, frames, ALL)
    wanted = _Spans(known)
    lost = _Spans([])
    for event in events:
        if event.event in OF_BLOCKS and not wanted.holds(event.address, event.address + 1):
            lost.cover(event.address, event.address + event.bytes)
    return lost.ranges(), _told(events, frames, ALL - OF_SEGMENTS)


def _idle_ranges(events: Iterable[Any], known: Iterable[Range]) -> list[Range]:
    """Stitched ranges that are kept and hold no block."""
    kept: dict[int, int] = {}
    for event in events:
        if event.event == STITCH:
            kept[event.address] = event.bytes
        elif event.event == UNSTITCH:
            kept.pop(event.address, None)
    for address, _ in known:
        kept.pop(address, None)
    return sorted(kept.items())


def _comes_out_even(events: Sequence[Any], ranges: Iterable[Range]) -> bool:
    """Whether every block lies in a segment when the events are undone, the last first."""
    spans = _Spans(ranges)
    for event in reversed(events):
        begin, end = event.address, event.address + event.bytes
        if event.event in OF_BLOCKS:
            fits = spans.holds(begin, end)
        elif event.event == STITCH:
            fits = spans.remove_at(begin)
        elif event.event == MAP:
            fits = spans.cut(begin, end)
        elif event.event in (UNMAP, UNSTITCH):
            fits = not spans.touches(begin, end)
            spans.cover(begin, end)
        else:
            fits = True
        if not fits:
            return False
    return True


class _Spans:
    """Bytes of addresses as spans that do not overlap, in order; neighbours stay apart."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for address, size in sorted(ranges):
            self.cover(address, address + size)

    def ranges(self) -> list[Range]:
        return [(begin, end - begin) for begin, end in zip(self._begins, self._ends, strict=True)]

    def holds(self, begin: int, end: int) -> bool:
        """Whether one span, or several that touch, hold all of it."""
        at = bisect_right(self._begins, begin) - 1
        while 0 <= at < len(self._begins) and self._begins[at] <= begin < self._ends[at]:
            if end <= self._ends[at]:
                return True
            begin, at = self._ends[at], at + 1
        return False

    def touches(self, begin: int, end: int) -> bool:
        """Whether any byte of it is in a span."""
        at = bisect_right(self._ends, begin)
        return at < len(self._begins) and self._begins[at] < end

    def cover(self, begin: int, end: int) -> None:
        """Add it; with what overlaps it, it becomes one span."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def cut(self, begin: int, end: int) -> bool:
        """Take it out, if it is there."""
        if not self.holds(begin, end):
            return False
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        rest = [(self._begins[first], begin), (end, self._ends[last - 1])]
        kept = [(start, stop) for start, stop in rest if start < stop]
        self._begins[first:last] = [start for start, _ in kept]
        self._ends[first:last] = [stop for _, stop in kept]
        return True

    def remove_at(self, begin: int) -> bool:
        """Remove the span that begins there, if there is one."""
        at = bisect_left(self._begins, begin)
        if at == len(self._begins) or self._begins[at] != begin:
            return False
        del self._begins[at], self._ends[at]
        return True


def _told(events: Iterable[Any], frames: FrameTable, kinds: frozenset[int]) -> list[dict[str, Any]]:
    """Events of these kinds; a free that is completed was made where it was requested."""
    requested: dict[int, int] = {}
    told = []
    for event in events:
        context = event.context
        if event.event == FREE_REQUESTED:
            requested[event.address] = context
        elif event.event == FREE_COMPLETED:
            context = requested.pop(event.address, 0)
        if event.event in kinds:
            told.append(_entry(event, frames.frames(context)))
    return told


def _entry(event: Any, context: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "action": ACTIONS[event.event],
        "device_free" if event.event == OOM else "addr": event.address,
        "size": event.bytes,
        "stream": event.stream,
        "time_us": event.time_ns // 1000,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (event.pool_high, event.pool_low),
        "frames": context,
    }
