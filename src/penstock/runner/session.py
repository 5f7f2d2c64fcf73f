# SPDX-License-Identifier: Apache-2.0
"""One run from request to result: open, hold, warm up, time, write, compare, give back.

Invariant: whatever ends a run (an error, an interrupt), the model is detached and the device
closed before `run` is left; a result exists only of a whole run. One thread; a watch of the
driver's memory figure has one of its own.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from penstock.errors import EnvironmentProblem
from penstock.fusion import auto
from penstock.fusion.variants import AUTO, Fusion, parse
from penstock.report.progress import Progress

from .check import TOLERANCE, Comparison, Reference, run_reference
from .device import MemoryWatch, RunDevice, check_batch, choose_device
from .modes import Held, hold
from .request import Request
from .result import Outcome, document
from .steps import forward_of, made_up_tokens, run_steps, warm_up
from .subject import Subject, open_subject
from .text import OnText, write

log = logging.getLogger("penstock.runner")


def run(request: Request, *, progress: Progress, on_text: OnText) -> dict[str, Any]:
    """Do what is asked.

    Args:
        request: A checked request.
        progress: Shows how far it is.
        on_text: Given the prompt and then its continuation, piece by
            piece, to the end of a line.

    Returns:
        The result, as JSON gives it; see `result.document`.

    Raises:
        PenstockError: If it cannot be done; its class says why.
    """
    return _Session(request, progress, on_text).run()


class _Session:
    """The parts of one run."""

    def __init__(self, request: Request, progress: Progress, on_text: OnText) -> None:
        self.request = request
        self.progress = progress
        self.on_text = on_text
        self.subject = open_subject(request)
        self.device = choose_device(request.settings)
        if request.cuda_graph and not self.device.is_cuda:
            raise EnvironmentProblem(
                f"--cuda-graph on {self.device.label}", remedy="--device cuda, where there is a GPU"
            )
        if request.timed_steps:
            check_batch(
                self.device,
                batch=request.batch,
                tokens=request.tokens_in_a_sequence(self.subject.config),
                vocabulary=self.subject.config.vocab_size,
            )
        self.reference: Reference | None = None
        tolerance = 0.0 if request.bitwise else TOLERANCE[request.dtype]
        self.comparison = Comparison(tolerance) if request.check else None

    def run(self) -> dict[str, Any]:
        request, subject, device = self.request, self.subject, self.device
        log.info("model=%s device=%s torch=%s", subject.config.name, device.name, torch.__version__)
        if request.cudnn_benchmark:
            torch.backends.cudnn.benchmark = True
        if request.check:
            self.reference = run_reference(request, subject, device, self.progress)
        # Before memory is watched, and before it is short.
        fusion = choose_fusion(request, subject, device)
        watch = MemoryWatch(device)
        with hold(request, subject, device, request.memory, self.progress, fusion=fusion) as held:
            outcome = self._work(held, watch)
        outcome.fusion = fusion
        self._compare(outcome)
        return document(request, subject, device, outcome, self.reference, self.comparison)

    def _work(self, held: Held, watch: MemoryWatch) -> Outcome:
        outcome = Outcome()
        if self.request.prompt is not None:
            self.on_text(self.request.prompt)
            outcome.written = write(
                self.request, self.subject, held, self.device, watch=watch, on_text=self.on_text
            )
            self.on_text("\n")  # a bar drawn behind the last word would wipe its line
        if self.request.timed_steps:
            outcome.steps, outcome.logits = self._time(held, watch)
        outcome.stats = held.stats()
        outcome.explain = held.explain()
        outcome.driver_peak = watch.peak
        outcome.counted = held.counted
        return outcome

    def _time(self, held: Held, watch: MemoryWatch) -> tuple[Any, Tensor]:
        request, progress = self.request, self.progress
        tokens = made_up_tokens(request, self.subject, self.device)
        forward = forward_of(request, held, tokens)
        if request.warmups:
            with progress.stage("warming up", request.warmups) as advance:
                warm_up(
                    forward,
                    tokens,
                    passes=request.warmups,
                    watch=watch,
                    advance=advance,
                    look=self._look,
                )
        with progress.stage("timed steps", request.timed_steps) as advance:
            return run_steps(
                forward,
                held,
                self.device,
                tokens,
                steps=request.timed_steps,
                watch=watch,
                advance=advance,
            )

    def _look(self, logits: Tensor) -> None:
        """The first passes, in which the order is learnt, must give the right logits too."""
        if self.comparison is not None and self.reference is not None:
            assert self.reference.logits is not None
            self.comparison.add(logits, self.reference.logits)

    def _compare(self, outcome: Outcome) -> None:
        if self.comparison is None or self.reference is None:
            return
        if outcome.logits is not None and self.reference.logits is not None:
            self.comparison.add(outcome.logits, self.reference.logits)
        if outcome.written is not None:
            self.comparison.add_all(outcome.written.logits, self.reference.text_logits)


def choose_fusion(request: Request, subject: Subject, device: RunDevice) -> Fusion:
    """The variants of a run: those it names, or for "auto" the fastest for its timed steps.

    Measuring needs room, and beside a model that is being paged it would be wrong and in the way:
    it is done before the model is loaded. Text, where there are no timed steps, is measured for the
    steps of one token.
    """
    how: dict[str, Any] = {
        "dtype": subject.dtype,
        "device": device.torch_device,
        "batch": request.batch if request.timed_steps else 1,
        "seq_len": request.tokens_in_a_sequence(subject.config) if request.timed_steps else 1,
    }
    if request.fusion == AUTO:
        return auto.choose(subject.config, **how, captured=request.cuda_graph)
    fusion = parse(request.fusion)
    if not request.compile:
        auto.warm(fusion, auto.Step(subject.config, **how))
    return fusion
