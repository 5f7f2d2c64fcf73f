# SPDX-License-Identifier: Apache-2.0
"""Replays of allocation traces by the library: no GPU and no memory, only its books.

Invariant: the arrays of a trace are only read, and only during the call. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.errors import FailedError, UsageError

from .api import INTERFACE, as_dict, new, new_array
from .library import check, library

# Name -> PENSTOCK_REPLAY_*.
ALLOCATORS = {"stitch": 0, "native": 1, "expandable": 2}
_NONE = 2**64 - 1


class Events(Protocol):
    """A trace: contiguous arrays of equal length (`penstock.trace.Trace` is one)."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def op(self) -> Any:
        """uint8: 0 allocate, 1 free requested, 2 free completed."""

    @property
    def id(self) -> Any:
        """uint32: which allocation."""

    @property
    def size(self) -> Any:
        """uint64: requested bytes."""

    @property
    def stream(self) -> Any:
        """uint32: 0 is the default stream."""

    @property
    def time_us(self) -> Any:
        """uint64: never falls."""


@dataclass(frozen=True)
class Replayed:
    """What came of a replay.

    Attributes:
        figures: The fields of penstock_replay_result: events, allocations, frees,
            peak_requested_bytes, peak_reserved_bytes, map_calls, stitches, stitch_hits,
            modelled_driver_ms, modelled_driver_ms_second_half, trace_ms, ns_per_op.
        failed_event: The event at which the capacity did not suffice and the replay ended.
        curve: (microseconds since the trace began, the most bytes requested since the point
            before, bytes reserved) in the order of time.
    """

    figures: dict[str, Any]
    failed_event: int | None
    curve: list[tuple[int, int, int]]


def replay(
    events: Events,
    *,
    allocator: str = "stitch",
    capacity: int = 0,
    packing: Mapping[str, int | float] | None = None,
    points: int = 0,
) -> Replayed:
    """Replay a trace on an allocator.

    Args:
        events: The trace.
        allocator: One of `ALLOCATORS`: Penstock's own, or a model of one of PyTorch's.
        capacity: Bytes of device memory; 0 is as much as it takes.
        packing: Fields of penstock_allocator_options, for "stitch".
        points: Points of the curve, at most.

    Raises:
        FailedError: If the events cannot have happened.
        UsageError: If an option makes no sense.
    """
    lib = library()
    kind = ALLOCATORS.get(allocator)
    if kind is None:
        raise UsageError(f"there is no allocator '{allocator}'", remedy=", ".join(ALLOCATORS))
    options = new("replay_options")
    check(lib.penstock_replay_defaults(options))
    options.allocator, options.capacity = kind, capacity
    wanted = new("allocator_options", **{"grow_exactly": 1, **(packing or {})})
    curve = new_array("replay_point", points)
    result = new("replay_result")
    trace = _trace(events)
    try:
        check(lib.penstock_replay(trace, options, wanted, curve, points, result))
    except UsageError as error:
        if not error.what.startswith("event "):
            raise
        raise FailedError(
            f"{events.name}: {error.what}", remedy="a trace that was not changed"
        ) from error
    figures = as_dict(result)
    written = figures.pop("points")
    failed = figures.pop("failed_event")
    return Replayed(
        figures,
        None if failed == _NONE else failed,
        [(point.time_us, point.requested, point.reserved) for point in curve[:written]],
    )


def _trace(events: Events) -> Any:
    kinds = {name: kind for name, kind, *_ in INTERFACE.structs["trace"]._fields_}
    arrays = {
        "op": events.op,
        "id": events.id,
        "bytes": events.size,
        "stream": events.stream,
        "time_us": events.time_us,
    }
    pointers = {name: array.ctypes.data_as(kinds[name]) for name, array in arrays.items()}
    return new("trace", count=len(events.op), **pointers)
