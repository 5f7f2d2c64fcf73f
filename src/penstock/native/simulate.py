# SPDX-License-Identifier: Apache-2.0
"""Simulations of recorded programs by the library: no GPU and no memory, only books and a clock.

Invariant: the records are only read, and only during the call. Any thread.
"""

from __future__ import annotations

from ctypes import POINTER, sizeof
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.errors import FailedError, UsageError

from .api import INTERFACE, as_dict, new, new_array
from .library import check, library

# Name -> PENSTOCK_SIMULATE_*.
POLICIES = {"penstock": 0, "lru": 1, "fifo": 2, "belady": 3}
_NONE = 2**64 - 1
# More than a recording of days has.
_MOST_STEPS = _MOST_SPANS = 1 << 17
LANES = ("compute", "in", "out")


class Recorded(Protocol):
    """A recording: contiguous records (`penstock.trace.WorkTrace` is one)."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def device_bytes(self) -> int:
        """Memory of the GPU that it was recorded on."""

    @property
    def budget_bytes(self) -> int:
        """What it was recorded under; 0 if that is not known."""

    @property
    def records(self) -> Any:
        """An array of penstock_work_record."""


@dataclass(frozen=True)
class Simulated:
    """What came of a simulation.

    Attributes:
        steps: The fields of penstock_simulate_step for each: ms, recorded_ms, bytes_in, bytes_out,
            page_uses, page_loads, least_bytes_in, least_bytes_out, first_piece, end_piece.
        spans: For each of `LANES`, when it was busy in the last step: (begin, end) in ms.
        figures: Those of penstock_simulate_result: pieces, blocks, peak_bytes, page_bytes, ahead,
            demanded.
        link_gb_per_s: The link that was simulated.
        failed_piece: The piece of work that the budget does not hold, where the steps end.
        failed_bytes: What that touches.
    """

    steps: list[dict[str, Any]]
    spans: dict[str, list[tuple[float, float]]]
    figures: dict[str, Any]
    link_gb_per_s: float
    failed_piece: int | None
    failed_bytes: int


def simulate(
    recorded: Recorded,
    *,
    budget: int,
    policy: str = "penstock",
    link_gb_per_s: float | None = None,
    steps: int = 0,
    kernels_write: bool = False,
) -> Simulated:
    """Simulate a recorded program under a budget of device memory.

    Args:
        recorded: The recording.
        budget: Bytes of device memory.
        policy: One of `POLICIES`: Penstock's engine, or pages on demand by a classic rule.
        link_gb_per_s: Of each direction; None is what was measured on an H200.
        steps: How many the recording is cut into; 0: by where it repeats itself.
        kernels_write: Take all that kernels touch for changed by them, weights too.

    Raises:
        FailedError: If the records cannot have happened.
        UsageError: If an option makes no sense.
    """
    lib = library()
    kind = POLICIES.get(policy)
    if kind is None:
        raise UsageError(f"there is no policy '{policy}'", remedy=", ".join(POLICIES))
    record = INTERFACE.structs["work_record"]
    if recorded.records.dtype.itemsize != sizeof(record):
        raise UsageError(f"{recorded.name}: records of {recorded.records.dtype.itemsize} bytes")
    options = new("simulate_options")
    check(lib.penstock_simulate_defaults(options))
    options.policy = kind
    options.budget = budget
    options.device_bytes = recorded.device_bytes
    options.steps = steps
    options.kernels_write = int(kernels_write)
    options.recorded_budget = recorded.budget_bytes
    if link_gb_per_s is not None:
        options.link_gb_per_s = link_gb_per_s
    room = new_array("simulate_step", _MOST_STEPS)
    spans = new_array("simulate_span", _MOST_SPANS)
    result = new("simulate_result")
    records = recorded.records.ctypes.data_as(POINTER(record))
    try:
        check(
            lib.penstock_simulate(
                records,
                len(recorded.records),
                options,
                *(room, _MOST_STEPS),
                *(spans, _MOST_SPANS),
                result,
            )
        )
    except UsageError as error:
        if not error.what.startswith("record "):
            raise
        raise FailedError(
            f"{recorded.name}: {error.what}", remedy="a recording that was not changed"
        ) from error
    figures = as_dict(result)
    found = min(figures.pop("steps"), _MOST_STEPS)
    busy: dict[str, list[tuple[float, float]]] = {lane: [] for lane in LANES}
    for span in spans[: min(figures.pop("spans"), _MOST_SPANS)]:
        busy[LANES[span.lane]].append((span.begin_ms, span.end_ms))
    failed, failed_bytes = figures.pop("failed_piece"), figures.pop("failed_bytes")
    return Simulated(
        [as_dict(room[i]) for i in range(found)],
        busy,
        figures,
        options.link_gb_per_s,
        None if failed == _NONE else failed,
        failed_bytes,
    )
