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

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.native.api import new
from penstock.native.torch_allocator import TorchAllocator

from .frames import FrameTable
from .trace import ALLOC, FREE_COMPLETED, retell

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
    pieces: list[Any]
    events: list[Any]


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
    beside, trace = retell(events, known, frames)
    return [*known, *(_empty(device, address, size) for address, size in beside)], trace


def origin_of(state: State, address: int, frames: FrameTable) -> list[dict[str, Any]] | None:
    """Where the live block at `address` was allocated; None where that was not recorded."""
    number = _origins(state.events).get(address)
    return frames.frames(number) if number else None


def _is_stitched(piece: Any) -> bool:
    return bool(piece.block) and piece.block + piece.block_offset != piece.address


def _segment(device: int, address: int, piece: Any, *, expandable: bool) -> Segment:
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


def _empty(device: int, address: int, size: int) -> Segment:
    """A stitched range without a block."""
    nothing = new("piece_info", address=address, bytes=size)
    range_ = _segment(device, address, nothing, expandable=False)
    _add_block(range_, _block(address, nothing, []))
    return range_


def _block(address: int, piece: Any, context: list[dict[str, Any]]) -> dict[str, Any]:
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
    stitched: dict[int, Segment], device: int, piece: Any, context: list[dict[str, Any]]
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


def _origins(events: Iterable[Any]) -> dict[int, int]:
    """Address of each block that is live -> the context it was allocated in."""
    live: dict[int, int] = {}
    for event in events:
        if event.event == ALLOC:
            live[event.address] = event.context
        elif event.event == FREE_COMPLETED:
            live.pop(event.address, None)
    return live
