# SPDX-License-Identifier: Apache-2.0
"""The steps of a fine-tune: data, engine, meter, evaluation and checkpoint, one after the other.

The host waits for the device before and after each step, so that a step's time has the allocator's
own work and its driver calls in it, as users of a loss per step see it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from penstock.errors import FailedError
from penstock.report.progress import Progress

from .data import Source
from .engine import Engine
from .group import Group
from .history import History
from .memory import Meter
from .request import Request

log = logging.getLogger("penstock.finetune")


@dataclass
class Loop:
    """What a run of steps needs.

    Attributes:
        request: A checked request.
        engine: Runs a step.
        source: Gives its batch.
        meter: Watches its memory.
        group: The processes.
        progress: Shows how far it is.
        batch: Sequences per step.
        history: What was seen so far.
        save: Called after steps that a checkpoint is due at.
        after_step: Called with the number of each step that is done, before anything else.
    """

    request: Request
    engine: Engine
    source: Source
    meter: Meter
    group: Group
    progress: Progress
    batch: int
    history: History = field(default_factory=History)
    save: Callable[[], None] = lambda: None
    after_step: Callable[[int], None] = lambda done: None

    def run(self) -> None:
        """Train up to the last step.

        Raises:
            FailedError: If the loss is no number.
        """
        request, history = self.request, self.history
        saved = history.done
        with self.progress.stage("training", request.steps) as advance:
            advance(history.done)
            while history.done < request.steps:
                self._step(history.done)
                self.after_step(history.done)
                self._evaluate_if_due()
                if request.save_every and history.done % request.save_every == 0:
                    self.save()
                    saved = history.done
                advance(1, f"loss {history.loss[-1]:.4f}, {self.meter.note()}")
        if request.checkpoint is not None and saved < history.done:
            self.save()

    def _step(self, number: int) -> None:
        group = self.group
        batch = self.source.batch(number, self.batch, group.rank, group.world)
        before = self.engine.stats()
        with self.meter.step():
            loss, ms = self.timed(
                lambda: self.engine.step(batch.to(self.engine.device.torch_device))
            )
        after = self.engine.stats()
        told = group.gather((loss, ms, batch.count))
        history = self.history
        history.loss.append(sum(each[0] for each in told) / group.world)
        history.step_ms.append(max(each[1] for each in told))
        history.tokens.append(sum(each[2] for each in told))
        history.shape.append((batch.tokens.shape[0], batch.tokens.shape[1]))
        history.bytes_in.append(after.get("bytes_in", 0) - before.get("bytes_in", 0))
        history.bytes_out.append(after.get("bytes_out", 0) - before.get("bytes_out", 0))
        log.info("step=%d loss=%.6f ms=%.3f", number, history.loss[-1], ms)
        if not math.isfinite(history.loss[-1]):
            raise FailedError(
                f"the loss of step {number} is {history.loss[-1]}",
                remedy=f"an --lr below {self.request.learning_rate:g}",
            )

    def timed(self, call: Callable[[], torch.Tensor]) -> tuple[float, float]:
        """The value of a call, and its ms by the host's clock."""
        cuda = self.engine.device.is_cuda
        if cuda:
            torch.cuda.synchronize(self.engine.device.torch_device)
        begin = time.perf_counter()
        value = call()
        if cuda:
            torch.cuda.synchronize(self.engine.device.torch_device)
        elapsed = (time.perf_counter() - begin) * 1e3
        return float(value), elapsed

    def _evaluate_if_due(self) -> None:
        request, history = self.request, self.history
        if request.eval_every is None or history.done % request.eval_every:
            return
        mine = self.engine.evaluate(self.source.held_out(self.batch))
        history.evaluations.append((history.done, self.group.mean(mine)))
