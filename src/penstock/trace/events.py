# SPDX-License-Identifier: Apache-2.0
"""A trace in memory: five arrays of equal length, one entry an event.

Invariant: the arrays are contiguous, of the types below, never empty and never changed; times
never fall. Whether the events make sense together is found out by whoever replays them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import FailedError

# The block is handed out; a free was asked for while another stream still used it; it is free.
OP_ALLOCATE, OP_FREE_REQUESTED, OP_FREE_COMPLETED = 0, 1, 2

# Field of a file -> type in memory.
FIELDS: dict[str, type[np.unsignedinteger[Any]]] = {
    "op": np.uint8,
    "id": np.uint32,
    "size": np.uint64,
    "stream": np.uint32,
    "time_us": np.uint64,
}
# Of a trace: twenty times as many as the longest that was recorded has; 500 MB in memory.
MOST_EVENTS = 20_000_000
REMEDY = (
    "an .npz with the arrays op, id, size, stream and time_us, or a snapshot that "
    "torch.cuda.memory._dump_snapshot() wrote"
)


@dataclass(frozen=True, eq=False)
class Trace:
    """What a program asked of an allocator.

    Attributes:
        name: Where it came from, for people.
        op: OP_ALLOCATE, OP_FREE_REQUESTED or OP_FREE_COMPLETED; shape (events,) in all arrays.
        id: Which allocation; an id may come again once it is free.
        size: Bytes, as the program asked for them.
        stream: Of the allocation; 0 is the default stream.
        time_us: Microseconds on any clock.
    """

    name: str
    op: npt.NDArray[np.uint8]
    id: npt.NDArray[np.uint32]
    size: npt.NDArray[np.uint64]
    stream: npt.NDArray[np.uint32]
    time_us: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.op)


def make_trace(name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Trace:
    """A trace of arrays that somebody else made.

    Args:
        name: Where they came from.
        arrays: One array for each of `FIELDS`, of whole numbers that are not negative.

    Raises:
        FailedError: If they are not such arrays, or differ in length.
    """
    if any(array.ndim == 1 and len(array) > MOST_EVENTS for array in arrays.values()):
        raise FailedError(
            f"{name} has more than {MOST_EVENTS:,} events", remedy="a trace of a shorter time"
        )
    fields = {field: _checked(name, field, arrays[field]) for field in FIELDS}
    lengths = {len(array) for array in fields.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{field} {len(array)}" for field, array in fields.items())
        raise FailedError(f"{name}: its arrays differ in length: {told}", remedy=REMEDY)
    if lengths == {0}:
        raise FailedError(f"{name} holds no events", remedy="a trace that was recorded for longer")
    falls = np.flatnonzero(fields["time_us"][1:] < fields["time_us"][:-1])
    if len(falls):
        raise FailedError(
            f"{name}: event {falls[0] + 1} is in the past of the one before",
            remedy="events in the order of time",
        )
    return Trace(name, **fields)


def _checked(name: str, field: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in the type of its field."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise FailedError(
            f"{name}: {field} is not a list of whole numbers ({array.dtype}, {array.ndim} "
            "dimensions)",
            remedy=REMEDY,
        )
    wanted = FIELDS[field]
    if len(array) and (array.min() < 0 or int(array.max()) > np.iinfo(wanted).max):
        raise FailedError(
            f"{name}: {field} holds values from {array.min()} to {array.max()}",
            remedy=f"0 to {np.iinfo(wanted).max}",
        )
    return np.ascontiguousarray(array, dtype=wanted)
