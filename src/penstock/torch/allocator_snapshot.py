# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.memory._snapshot() and memory_snapshot() from the allocator's pieces and events.

A stitched block lies in several pieces of device memory, and its address in none of their runs of
chunks. Two views follow, and each is right for what torch uses it for:

* `segments`, for memory_snapshot(): device memory by whose it is. A stitched block is a segment of
  its own, and its pieces are left out of the others, so that the sizes add up to what is reserved.
* `snapshot`, for _snapshot() and memory_viz, which follows addresses back through time: runs of
  chunks whole, and every range that events speak of beside them. The pieces of a stitched block
  are "inactive" in their runs, since its bytes are shown at its own address.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.native.allocator_structs import HistoryEvent, PieceInfo
from penstock.native.torch_allocator import TorchAllocator

from .allocator_frames import FrameTable

ALLOC, FREE_REQUESTED, FREE_COMPLETED, MAP, UNMAP, STITCH, UNSTITCH, OOM = range(8)
ACTIONS = {
    ALLOC: "alloc",
    FREE_REQUESTED: "free_requested",
    FREE_COMPLETED: "free_completed",
    MAP: "segment_map",
    UNMAP: "segment_unmap",
    STITCH: "segment_alloc",
    UNSTITCH: "segment_free",
    OOM: "oom",
}
STATES = ("inactive", "active_allocated", "active_awaiting_free")

Segment = dict[str, Any]


@dataclass(frozen=True)
class State:
    """What an allocator says of itself at one moment.

    Attributes:
        device: torch's number of its device.
        pieces: All device memory, ordered by address.
        events: Those that are kept, oldest first.
    """

    device: int
    pieces: list[PieceInfo]
    events: list[HistoryEvent]


def state_of(device: int) -> State:
    """Ask the allocator of a device."""
    allocator = TorchAllocator(device)
    return State(device, allocator.pieces(), allocator.history())


def segments(
    state: State, frames: FrameTable, pool: tuple[int, int] | None = None
) -> list[Segment]:
    """Device memory by whose it is: total sizes add up to what is reserved.

    Args:
        state: The allocator's.
        frames: Where the contexts of events point.
        pool: Only this pool's.
    """
    device = state.device
    origins = _origins(state.events)
    found: list[Segment] = []
    stitched: dict[int, Segment] = {}
    last: Segment | None = None
    for piece in state.pieces:
        if pool is not None and (piece.pool_high, piece.pool_low) != pool:
            continue
        context = frames.frames(origins.get(piece.block, 0))
        if _is_stitched(piece):
            _add_piece(stitched, device, piece, context)
            last = None
            continue
        if last is None or piece.address != last["address"] + last["total_size"]:
            last = _segment(device, piece.address, piece, expandable=True)
            found.append(last)
        _add_block(last, _block(piece.address, piece, context))
    return [*found, *stitched.values()]


def snapshot(state: State, frames: FrameTable) -> tuple[list[Segment], list[dict[str, Any]]]:
    """Addresses as the program sees them, and the events that led there."""
    device, events = state.device, state.events
    origins = _origins(events)
    runs: dict[int, Segment] = {}
    stitched: dict[int, Segment] = {}
    for piece in state.pieces:
        context = frames.frames(origins.get(piece.block, 0))
        if piece.segment not in runs:
            runs[piece.segment] = _segment(device, piece.segment, piece, expandable=True)
        block = _block(piece.address, piece, context)
        if _is_stitched(piece):
            _add_piece(stitched, device, piece, context)
            block = {**block, "state": "inactive", "requested_size": 0, "frames": []}
        _add_block(runs[piece.segment], block)
    known = [*runs.values(), *stitched.values()]
    known += [
        _empty(device, address, end - address, stream)
        for address, end, stream in _ranges_spoken_of(events, known)
    ]
    return known, _trace(events, frames)


def origin_of(state: State, address: int, frames: FrameTable) -> list[dict[str, Any]] | None:
    """Where the live block at `address` was allocated; None where that was not recorded."""
    number = _origins(state.events).get(address)
    return frames.frames(number) if number else None


def _is_stitched(piece: PieceInfo) -> bool:
    return bool(piece.block) and piece.block + piece.block_offset != piece.address


def _segment(device: int, address: int, piece: PieceInfo, *, expandable: bool) -> Segment:
    return {
        "device": device,
        "address": address,
        "total_size": 0,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": piece.stream if piece.block else 0,
        "segment_type": "large",  # small and large blocks share chunks
        "segment_pool_id": (piece.pool_high, piece.pool_low),
        "is_expandable": expandable,
        "frames": [],
        "blocks": [],
    }


def _empty(device: int, address: int, size: int, stream: int) -> Segment:
    """A stitched range without a block."""
    nothing = PieceInfo(address=address, bytes=size, stream=stream)
    range_ = _segment(device, address, nothing, expandable=False)
    _add_block(range_, _block(address, nothing, []))
    return range_


def _block(address: int, piece: PieceInfo, context: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "address": address,
        "size": piece.bytes,
        "requested_size": piece.requested_bytes,
        "state": STATES[piece.state],
        "frames": context,
    }


def _add_block(segment: Segment, block: dict[str, Any]) -> None:
    segment["blocks"].append(block)
    segment["total_size"] += block["size"]
    if block["state"] == "active_allocated":
        segment["allocated_size"] += block["size"]
    if block["state"] != "inactive":
        segment["active_size"] += block["size"]
        segment["requested_size"] += block["requested_size"]


def _add_piece(
    stitched: dict[int, Segment], device: int, piece: PieceInfo, context: list[dict[str, Any]]
) -> None:
    """Let a stitched block's segment, whose only block it is, grow by one of its pieces."""
    segment = stitched.get(piece.block)
    if segment is None:
        segment = _segment(device, piece.block, piece, expandable=False)
        stitched[piece.block] = segment
        _add_block(segment, _block(piece.block, piece, context))
        return
    block = segment["blocks"].pop()
    for name in ("total_size", "allocated_size", "active_size", "requested_size"):
        segment[name] = 0
    block["size"] += piece.bytes
    block["requested_size"] += piece.requested_bytes
    _add_block(segment, block)


def _origins(events: Iterable[HistoryEvent]) -> dict[int, int]:
    """Address of each block that is live -> the context it was allocated in."""
    live: dict[int, int] = {}
    for event in events:
        if event.event == ALLOC:
            live[event.address] = event.context
        elif event.event == FREE_COMPLETED:
            live.pop(event.address, None)
    return live


def _ranges_spoken_of(
    events: Iterable[HistoryEvent], known: list[Segment]
) -> list[tuple[int, int, int]]:
    """(begin, end, stream) of ranges that events need and no segment covers.

    memory_viz puts every block of every moment into a segment. Ranges stitched and given up within
    the recording come and go by their own events; here are those that are kept, unused.
    """
    spans: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    covered = [(each["address"], each["address"] + each["total_size"]) for each in known]
    for event in events:
        if event.event == UNMAP:
            covered.append((event.address, event.address + event.bytes))
        elif event.event == UNSTITCH:
            spans.pop(event.address, None)
        elif event.event in (ALLOC, FREE_REQUESTED, FREE_COMPLETED, STITCH):
            size, _ = spans[event.address]
            spans[event.address] = (max(size, event.bytes), event.stream)
    found: list[tuple[int, int, int]] = []
    for address in sorted(spans):
        size, stream = spans[address]
        if any(begin <= address < end for begin, end in covered):
            continue
        if found and address < found[-1][1]:
            begin, end, of = found.pop()
            found.append((begin, max(end, address + size), of))
        else:
            found.append((address, address + size, stream))
    return found


def _trace(events: Iterable[HistoryEvent], frames: FrameTable) -> list[dict[str, Any]]:
    """Events as torch tells them; a free that is completed was made where it was requested."""
    requested: dict[int, int] = {}
    told = []
    for event in events:
        context = event.context
        if event.event == FREE_REQUESTED:
            requested[event.address] = context
        elif event.event == FREE_COMPLETED:
            context = requested.pop(event.address, 0)
        told.append(_entry(event, frames.frames(context)))
    return told


def _entry(event: HistoryEvent, context: list[dict[str, Any]]) -> dict[str, Any]:
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
