# SPDX-License-Identifier: Apache-2.0
"""The figures of a run: what the steps and counters amount to.

Pure functions and data, standard library only. Sizes in bytes, times in ms, link rates in decimal
GB/s (a byte a ns).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.bound import shortest_ms
from penstock.units import format_number


@dataclass
class Steps:
    """What was seen of each timed step, in order.

    Attributes:
        ms: Duration.
        bytes_in: Bytes moved to the device.
        bytes_out: Bytes moved from it.
        tokens: Tokens of each step that count for the rate.
    """

    ms: list[float] = field(default_factory=list)
    bytes_in: list[int] = field(default_factory=list)
    bytes_out: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """The median step."""
        return statistics.median(self.ms)

    @property
    def tokens_per_second(self) -> float:
        """All tokens over all the time."""
        total = sum(self.ms)
        return sum(self.tokens) / total * 1e3 if total > 0 else 0.0


@dataclass(frozen=True)
class Ideal:
    """The shortest that a step can take: ``max(T, (M - S) / B)``.

    Attributes:
        ms: The bound, or None where neither T nor B is known.
        compute_ms: T, the time with everything resident; None where it is not known.
        compute_from: What T was taken from: "resident run", "profiled pass" or "own steps".
        room_bytes: S, what the budget leaves for weights, with no room lost to transfers.
    """

    ms: float | None
    compute_ms: float | None
    compute_from: str | None
    room_bytes: int


def ideal_step(
    *,
    touched: int,
    budget: int,
    others: int,
    link_gb_per_s: float,
    resident_ms: float | None = None,
    profiled_ms: float | None = None,
    own_ms: float | None = None,
    step_ms: float | None = None,
) -> Ideal:
    """Work the bound out from what was measured in the same process.

    Args:
        touched: M, bytes of weights that a step touches.
        budget: Bytes of device memory that the run may take.
        others: Bytes of it that activations and workspace took at their peak.
        link_gb_per_s: B, the speed of page-locked copies.
        resident_ms: A step of the resident model, where one was run.
        profiled_ms: A profiled step less the time it waited for pages, where there was one.
        own_ms: The steps themselves, where nothing moved in them.
        step_ms: The median step. A pass that was profiled alone may have been a slow one: no step
            computes for longer than it takes.
    """
    if profiled_ms is not None and step_ms is not None:
        profiled_ms = min(profiled_ms, step_ms)
    room = max(0, budget - others)
    missing = max(0, touched - room)
    compute = source = None
    for value, name in (
        (resident_ms, "resident run"),
        (profiled_ms, "profiled pass"),
        (own_ms, "own steps"),
    ):
        if value is not None and value > 0:
            compute, source = value, name
            break
    bound = shortest_ms(compute or 0.0, (missing, link_gb_per_s))
    return Ideal(bound or None, compute, source, room)


def steps_counted(count: int) -> str:
    """A number of steps in words."""
    return f"{count:,} steps" if count != 1 else "1 step"


def steps_told(samples: Sequence[float]) -> str:
    """Times of steps in words."""
    low, middle, high = (format_number(value) for value in spread(samples))
    return f"{middle} ms, p10-p90 {low} to {high}, {steps_counted(len(samples))}"


def spread(samples: Sequence[float]) -> tuple[float, float, float]:
    """Tenth percentile, median and ninetieth percentile."""
    ordered = sorted(samples)
    cut = len(ordered) // 10
    return ordered[cut], statistics.median(ordered), ordered[-1 - cut]
