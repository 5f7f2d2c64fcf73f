# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots of PyTorch (``torch.cuda.memory._snapshot()``) as traces.

A snapshot holds the last events of each device and the blocks that are live at its end. Blocks
that were live before the first event are found from both: an address that is freed without having
been allocated in the events, and one that is live at the end and was never allocated in them. They
become allocations at the time of the first event, in the order of their addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import FailedError

from .events import (
    MOST_EVENTS,
    OP_ALLOCATE,
    OP_FREE_COMPLETED,
    OP_FREE_REQUESTED,
    Trace,
    make_trace,
)

ACTIONS = {
    "alloc": OP_ALLOCATE,
    "free_requested": OP_FREE_REQUESTED,
    "free_completed": OP_FREE_COMPLETED,
}
MOST_DEVICES = 128
LIVE_STATES = ("active_allocated", "active_awaiting_free", "active_pending_free")
REMEDY = (
    "call torch.cuda.memory._record_memory_history() before the work and _dump_snapshot() after it"
)


def read_snapshot(name: str, snapshot: Any) -> list[Trace]:
    """One trace for each device that has events.

    Args:
        name: What to call it; several devices get their number behind it.
        snapshot: The snapshot's plain data.

    Raises:
        FailedError: If it is not a snapshot, or was taken without a history.
    """
    try:
        traces = snapshot["device_traces"]
        _check_sizes(name, snapshot)
        used = [device for device, entries in enumerate(traces) if _any_allocation(entries)]
        segments = snapshot["segments"]
        found = []
        for device in used:
            title = name if len(used) == 1 else f"{name}#{device}"
            own = [segment for segment in segments if segment.get("device", 0) == device]
            found.append(_Builder().build(title, traces[device], own))
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise FailedError(
            f"{name} is not a memory snapshot of PyTorch ({type(error).__name__}: {error})",
            remedy="what torch.cuda.memory._dump_snapshot() wrote",
        ) from error
    if not found:
        raise FailedError(f"{name} has no history of allocations", remedy=REMEDY)
    return found


def _check_sizes(name: str, snapshot: Any) -> None:
    """Refuse what a few bytes can say: that a list stands in many places."""
    devices, segments = snapshot["device_traces"], snapshot["segments"]
    events = sum(len(entries) for entries in devices)
    blocks = sum(len(segment["blocks"]) for segment in segments)
    if len(devices) > MOST_DEVICES or max(events, blocks) > MOST_EVENTS:
        raise FailedError(
            f"{name} has {len(devices):,} devices, {events:,} events and {blocks:,} blocks",
            remedy=f"up to {MOST_DEVICES} devices, and {MOST_EVENTS:,} events and blocks",
        )


def _any_allocation(entries: Any) -> bool:
    return any(entry["action"] in ACTIONS for entry in entries)


@dataclass
class _Builder:
    """Collects the events of one device."""

    events: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    before: list[tuple[int, int, int, int]] = field(default_factory=list)  # address, id, size, ...
    live: dict[int, int] = field(default_factory=dict)  # address -> id
    streams: dict[int, int] = field(default_factory=lambda: {0: 0})
    ids: int = 0

    def build(self, name: str, entries: list[dict[str, Any]], segments: list[Any]) -> Trace:
        last = 0
        for entry in entries:
            op = ACTIONS.get(entry["action"])
            if op is None:
                continue
            last = max(last, int(entry.get("time_us", 0)))
            self.add(op, int(entry["addr"]), int(entry["size"]), self.stream(entry), last)
        for address, size, stream in _live_blocks(segments):
            if address not in self.live:
                self.before.append((address, self.new_id(), size, self.stream({"stream": stream})))
        first = self.events[0][4]
        earlier = [
            (OP_ALLOCATE, number, size, stream, first)
            for _, number, size, stream in sorted(self.before)
        ]
        table = np.array(earlier + self.events, dtype=np.uint64).reshape(-1, 5)
        return make_trace(
            name, dict(zip(("op", "id", "size", "stream", "time_us"), table.T, strict=True))
        )

    def add(self, op: int, address: int, size: int, stream: int, time_us: int) -> None:
        if op == OP_ALLOCATE:
            if address in self.live:  # its free is not in the history
                self.event(OP_FREE_COMPLETED, address, size, stream, time_us)
            self.live[address] = self.new_id()
        elif address not in self.live:
            self.live[address] = self.new_id()
            self.before.append((address, self.live[address], size, stream))
        self.event(op, address, size, stream, time_us)

    def event(self, op: int, address: int, size: int, stream: int, time_us: int) -> None:
        number = self.live.pop(address) if op == OP_FREE_COMPLETED else self.live[address]
        self.events.append((op, number, size, stream, time_us))

    def new_id(self) -> int:
        self.ids += 1
        return self.ids - 1

    def stream(self, entry: dict[str, Any]) -> int:
        """Streams by the order in which they appear; the default stream is 0."""
        return self.streams.setdefault(int(entry.get("stream", 0)), len(self.streams))


def _live_blocks(segments: list[Any]) -> Iterator[tuple[int, int, int]]:
    """Address, requested size and stream of every block that is live at the end."""
    for segment in segments:
        address = int(segment["address"])
        for block in segment["blocks"]:
            address = int(block.get("address", address))
            if block["state"] in LIVE_STATES:
                size = int(block.get("requested_size") or block["size"])
                yield address, size, int(segment.get("stream", 0))
            address += int(block["size"])
