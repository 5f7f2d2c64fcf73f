# SPDX-License-Identifier: Apache-2.0
"""The largest batch that fits: by doubling, then by halving what is between.

`largest` is pure; `Fit` tries a batch: on a GPU by running it and recovering from the error, on the
emulated GPU by replaying its allocations within the budget.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from penstock.errors import OutOfMemory
from penstock.report.progress import Advance

from .data import Source
from .engine import Engine
from .memory import Budget, ReplayMeter, out_of_memory

# Nobody means more; where a batch needs no memory worth the name the search has to end.
MOST = 1 << 16


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        batch: The largest that fits; 0 where not even one sequence does.
        tries: Each try in order: batch, fits, seconds.
    """

    batch: int
    tries: list[dict[str, Any]]


def largest(fits: Callable[[int], bool], *, first: int = 1, below: int | None = None) -> int:
    """The largest number that fits, if all below it do.

    Args:
        fits: Whether a number does.
        first: Where doubling begins.
        below: A number that is known not to fit.
    """
    low, high = 0, below
    batch = max(1, first if below is None else min(first, below - 1))
    while batch < (high or MOST) and fits(batch):
        low, batch = batch, batch * 2
    high = min(batch, high or MOST)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def follow(meter: ReplayMeter, engine: Engine) -> None:
    """Let a meter record an engine's steps, with what is alive now."""
    meter.adopt(engine.alive())
    engine.look = meter.adopt


class Fit:
    """Tries batches on an engine that is thrown away afterwards.

    Args:
        engine: Trains on what is tried.
        source: Gives sequences, the longest among them.
        budget: Replays allocations on the emulated GPU; None on a GPU.
        advance: Told after each try.
    """

    def __init__(
        self, engine: Engine, source: Source, budget: Budget | None, advance: Advance
    ) -> None:
        self._engine, self._source, self._budget = engine, source, budget
        self._advance = advance
        self.tries: list[dict[str, Any]] = []

    def __call__(self, batch: int) -> bool:
        """Whether a batch fits: its longest sequences, some others, and the longest again.

        From where a run begins: with AdamW's state there already, and not made among the first
        step's activations, the native allocator had room for 117 sequences where a run took 96.
        """
        begin = time.perf_counter()
        self._engine.begin_anew()
        fits = self._runs(batch) if self._budget is None else self._replays(batch, self._budget)
        seconds = time.perf_counter() - begin
        self.tries.append({"batch": batch, "fits": fits, "seconds": round(seconds, 3)})
        self._advance(1, f"{batch} {'fits' if fits else 'does not fit'}")
        return fits

    def _step(self, batch: int, number: int) -> None:
        picked = self._source.longest(batch) if number % 2 == 0 else self._source.batch(0, batch)
        self._engine.step(picked.to(self._engine.device.torch_device))

    def _runs(self, batch: int) -> bool:
        def steps() -> None:
            for number in range(3):
                self._step(batch, number)
                torch.cuda.synchronize(self._engine.device.torch_device)

        fits = self._fit(steps)
        self._engine.recover()
        gc.collect()
        torch.cuda.empty_cache()
        return fits

    def _replays(self, batch: int, budget: Budget) -> bool:
        meter: ReplayMeter = budget.meter()
        follow(meter, self._engine)

        def steps() -> None:
            for number in range(2):
                with meter.step():
                    self._step(batch, number)

        if self._fit(steps):
            return budget.holds(meter)
        self._engine.recover()  # beside the pager tensors count, and a step may find no room
        gc.collect()
        return False

    @staticmethod
    def _fit(steps: Callable[[], None]) -> bool:
        """Whether steps run to their end; what they made is in their error's frames until then."""
        try:
            steps()
        except (RuntimeError, OutOfMemory) as error:
            if not out_of_memory(error):
                raise
            return False
        return True
