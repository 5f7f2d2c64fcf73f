# SPDX-License-Identifier: Apache-2.0
"""What a recording looks like: memory over time, and which pages a step touches when.

What is allocated all through the last step is called weights here, though it may be a cache or an
optimizer's state as well; a recording does not say what a block is for. Pure, numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .work import OP_ALLOCATE, OP_FREE, OP_TOUCH, OP_WORK, WorkTrace

_POINTS = 200
_COLUMNS, _ROWS = 96, 48
_MS = 1e6  # ns


def picture(recorded: WorkTrace, first_piece: int, end_piece: int) -> dict[str, Any]:
    """`memory_over_time` of the recording, and `heat` of one step of it, as JSON has them.

    Args:
        recorded: The recording.
        first_piece: Number of the step's first piece of work.
        end_piece: Of the first one after it.
    """
    records = recorded.records
    works = np.flatnonzero(records["op"] == OP_WORK)
    begin = int(works[first_piece])
    end = int(works[end_piece]) if end_piece < len(works) else len(records)
    blocks = _blocks(records)
    number, born, gone, nbytes = blocks.T
    last = int(works[end_piece - 1])
    # A recording that is one step has no work before it.
    before = int(works[first_piece - 1]) if first_piece else (begin + last) // 2
    stays = (born < before) & (gone > last)
    return {
        "memory_over_time": _memory(records, blocks, stays),
        "heat": _heat(records, begin, end, number[stays], nbytes[stays]),
    }


def _blocks(records: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """A row a block: its number, the records that allocate and free it, and its bytes."""
    events = np.flatnonzero((records["op"] == OP_ALLOCATE) | (records["op"] == OP_FREE))
    events = events[np.argsort(records["number"][events], kind="stable")]
    number = records["number"][events].astype(np.int64)
    after = np.append(np.where(number[1:] == number[:-1], events[1:], len(records)), len(records))
    made = records["op"][events] == OP_ALLOCATE
    rows = np.stack([number, events, after, records["value"][events].astype(np.int64)], axis=1)
    kept: npt.NDArray[np.int64] = rows[made]
    by_time: npt.NDArray[np.int64] = kept[np.argsort(kept[:, 1], kind="stable")]
    return by_time


def _memory(
    records: npt.NDArray[np.void], blocks: npt.NDArray[np.int64], stays: npt.NDArray[np.bool_]
) -> dict[str, list[float]]:
    """Each point is where most is allocated, of an equal share of the time."""
    _, born, gone, nbytes = blocks.T
    freed = gone < len(records)
    order = np.concatenate([born, gone[freed]])
    change = np.concatenate([nbytes, -nbytes[freed]])
    weights = np.where(np.concatenate([stays, stays[freed]]), change, 0)
    by_time = np.argsort(order, kind="stable")
    at = records["at"][order[by_time]].astype(np.int64)
    since = at - at.min()
    total, held = np.cumsum(change[by_time]), np.cumsum(weights[by_time])
    bins = since * _POINTS // (int(since.max()) + 1)
    highest = np.lexsort((total, bins))
    last = np.append(np.flatnonzero(np.diff(bins[highest])), len(highest) - 1)
    chosen = highest[last]
    return {
        "ms": (since[chosen] / _MS).round(3).tolist(),
        "weights": held[chosen].tolist(),
        "requested": total[chosen].tolist(),
    }


def _heat(
    records: npt.NDArray[np.void],
    begin: int,
    end: int,
    number: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
) -> dict[str, Any] | None:
    """Touches by address, in the order of allocation, and time."""
    step = records[begin:end]
    at = np.where(step["op"] == OP_WORK, step["at"], 0)
    since = np.maximum.accumulate(at).astype(np.int64) - int(step["at"][0])
    by_number = np.argsort(number)
    touches = np.flatnonzero((step["op"] == OP_TOUCH) & np.isin(step["number"], number))
    total, length = int(nbytes.sum()), int(since.max()) + 1
    if not len(touches) or not total:
        return None
    block = by_number[np.searchsorted(number[by_number], step["number"][touches])]
    base = np.cumsum(nbytes) - nbytes
    offset, size = (step[key][touches].astype(np.int64) for key in ("at", "value"))
    first = base[block] + np.minimum(offset, nbytes[block] - 1)
    size = np.where(size == 0, nbytes[block], size)
    last = np.minimum(first + size, base[block] + nbytes[block]) - 1
    counts = np.zeros((_ROWS + 1, _COLUMNS), np.int64)
    column = since[touches] * _COLUMNS // length
    np.add.at(counts, (first * _ROWS // total, column), 1)
    np.add.at(counts, (last * _ROWS // total + 1, column), -1)
    return {
        "ms": length / _MS,
        "bytes": total,
        "columns": _COLUMNS,
        "touches": np.cumsum(counts, axis=0)[:_ROWS].ravel().tolist(),
    }
