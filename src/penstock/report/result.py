# SPDX-License-Identifier: Apache-2.0
"""What the results of different verbs have in common.

A `Result` is one run: of `penstock finetune`, `gpt` or `simulate` one a file, of `compare` one a
setting, of `replay` one a trace and allocator. Data alone; `verbs` makes them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Values = list["float | None"]


@dataclass(frozen=True)
class Curve:
    """Memory over time, in lists of equal length.

    Attributes:
        ms: Since the first step began.
        requested: The most bytes that were asked for since the point before.
        reserved: Bytes that the allocator held.
        weights: Those of `requested` that stay from step to step, where that is known.
    """

    ms: list[float] = field(default_factory=list)
    requested: list[float] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)
    weights: list[float] | None = None

    def parts(self, room: int | None) -> dict[str, list[float]]:
        """The curve by kind, from the bottom of a stack up, without kinds that are always zero.

        Args:
            room: What there is in all, to say what is free; None if that is not known.
        """
        points = list(zip(self.requested, self.reserved, strict=True))
        parts = {"tensors": list(self.requested)}
        if self.weights is not None:
            pairs = zip(self.requested, self.weights, strict=True)
            parts = {"weights": list(self.weights), "activations": [a - w for a, w in pairs]}
        parts["cache"] = [max(0.0, reserved - asked) for asked, reserved in points]
        if room is not None:
            parts["free"] = [max(0.0, room - max(point)) for point in points]
        return {kind: values for kind, values in parts.items() if any(values)} or parts


@dataclass(frozen=True)
class Heat:
    """How often a step touches pages.

    Attributes:
        ms: How long the step is.
        bytes: How much memory there is to touch.
        touches: Rows by address, columns by time, of equal length.
    """

    ms: float
    bytes: float
    touches: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Result:
    """One run. Sizes in bytes, times in ms; None where the verb says nothing of it.

    Attributes:
        name: What it is called in tables.
        verb: Which verb wrote it.
        setting: What ran, on what, and how: model, batch, device, allocator, policy, versions.
        failure: How it failed, in a word or two; None where it succeeded.
        error: The same in one line.
        emulated: Whether there was no GPU, so that times say nothing.
        gpu_memory_bytes: The budget.
        step_ms: The steps that count, without those that warm up or learn; null is not finite.
        first_step: Number of the first of them, from 1.
        tokens_per_second: Over these steps.
        ideal_ms: The shortest that a step can take, max(T, (M - S) / B).
        ratio_to_ideal: The median step over that.
        hit_ratio: Of the uses of pages, how many found them resident.
        bytes_in: Moved to the device in a step.
        bytes_out: Moved from it.
        peak_requested_bytes: What tensors or blocks asked for.
        peak_active_bytes: What their blocks took, until their last use was over.
        peak_reserved_bytes: What the allocator held for them.
        utilisation: Peak requested over peak reserved bytes.
        peak_device_bytes: What the driver says was taken.
        driver_ms: What the allocator's calls to the driver cost, by a model.
        loss: One a step, those that warm up included; null is not finite.
        loss_difference: By how much the loss differs from that of the first setting, at most.
        memory_over_time: A curve, where one was recorded.
        compute_ms: What a step takes with everything resident.
        link_gb_per_s: The link's speed to the device.
        lanes: When kernels ("compute") and copies ("in", "out") ran in one step: begins and ends.
        heat: Of one step.
    """

    name: str
    verb: str
    setting: Sequence[str] = ()
    failure: str | None = None
    error: str | None = None
    emulated: bool = False
    gpu_memory_bytes: int | None = None
    step_ms: Values = field(default_factory=list)
    first_step: int = 1
    tokens_per_second: float | None = None
    ideal_ms: float | None = None
    ratio_to_ideal: float | None = None
    hit_ratio: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None
    peak_requested_bytes: int | None = None
    peak_active_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    utilisation: float | None = None
    peak_device_bytes: int | None = None
    driver_ms: float | None = None
    loss: Values = field(default_factory=list)
    loss_difference: float | None = None
    memory_over_time: Curve | None = None
    compute_ms: float | None = None
    link_gb_per_s: float | None = None
    lanes: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    heat: Heat | None = None

    @property
    def median_step_ms(self) -> float | None:
        """The median of the steps that count."""
        return median(self.step_ms)

    @property
    def last_loss(self) -> float | None:
        """Of the last step."""
        return self.loss[-1] if self.loss else None


def median(values: Sequence[Any]) -> float | None:
    """The median of the numbers among `values`; None where there are none."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None
