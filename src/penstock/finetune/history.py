# SPDX-License-Identifier: Apache-2.0
"""What was seen of the steps of a run, in lists with one entry a step; pure data.

A run that goes on from a checkpoint takes over what it holds of the steps before; times and bytes
are of this process's own steps too, those before are marked by `resumed_at`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

# Steps that make optimizer state and load kernels, and with the pager those in which the order is
# learned and room is dealt out; not part of rates.
WARM_UP, PAGED_WARM_UP = 2, 5


@dataclass
class History:
    """Lists in the order of steps.

    Attributes:
        loss: Of each step, before its update, the mean over all processes.
        step_ms: How long it took.
        tokens: Real tokens of all processes.
        shape: (sequences, tokens of the longest) on the first process.
        bytes_in: To the device, by the pager.
        bytes_out: From it.
        evaluations: (steps done, loss).
        resumed_at: Steps that were done before this process.
        warm_up: Steps of this process that do not count for rates, where there are more.
    """

    loss: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    shape: list[tuple[int, int]] = field(default_factory=list)
    bytes_in: list[int] = field(default_factory=list)
    bytes_out: list[int] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    resumed_at: int = 0
    warm_up: int = WARM_UP

    @property
    def done(self) -> int:
        """Steps so far."""
        return len(self.loss)

    @property
    def timed_from(self) -> int:
        """The first step that counts for rates."""
        return min(self.resumed_at + self.warm_up, max(self.resumed_at, self.done - 1))

    @property
    def median_ms(self) -> float | None:
        """The median of the steps that count."""
        timed = self.step_ms[self.timed_from :]
        return statistics.median(timed) if timed else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the steps that count, over their time."""
        total = sum(self.step_ms[self.timed_from :])
        return sum(self.tokens[self.timed_from :]) / total * 1e3 if total > 0 else None

    @staticmethod
    def from_json(document: dict[str, Any]) -> History:
        """The history that `dataclasses.asdict` gave, as that of steps before."""
        history = History(**document)
        history.shape = [(rows, length) for rows, length in history.shape]
        history.evaluations = [(step, loss) for step, loss in history.evaluations]
        history.resumed_at = history.done
        return history
