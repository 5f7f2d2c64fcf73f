# SPDX-License-Identifier: Apache-2.0
"""Forward passes of one batch, timed one by one.

Every pass is without a graph, warm-ups too. The host waits for each step before it gives the
next, as a program that reads its logits does, and the logits of a step are gone before the next
begins, so that no step runs beside the output of another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from penstock.fusion.captured import Captured
from penstock.report.progress import Advance

from .device import MemoryWatch, RunDevice
from .figures import Steps
from .modes import Held
from .request import Request
from .subject import Subject

log = logging.getLogger("penstock.runner")

Look = Callable[[Tensor], None]
Forward = Callable[[Tensor], Tensor]


def made_up_tokens(request: Request, subject: Subject, device: RunDevice) -> Tensor:
    """The input of every step, decided by the seed alone: (batch, tokens) ids on the device."""
    generator = torch.Generator().manual_seed(request.seed)
    shape = (request.batch, request.tokens_in_a_sequence(subject.config))
    tokens = torch.randint(0, subject.config.vocab_size, shape, generator=generator)
    return tokens.to(device.torch_device)


def forward_of(request: Request, held: Held, tokens: Tensor) -> Forward:
    """What a step calls: the model, or a CUDA graph of it for inputs like these tokens."""
    model = torch.no_grad()(held.model)
    return Captured(model, tokens) if request.cuda_graph else model


def warm_up(
    forward: Forward,
    tokens: Tensor,
    *,
    passes: int,
    watch: MemoryWatch,
    advance: Advance,
    look: Look | None = None,
) -> None:
    """Run passes that are not timed.

    Args:
        forward: The model.
        tokens: Its input.
        passes: How many.
        watch: Sees the memory taken.
        advance: Told after each pass.
        look: Shown the logits of each pass, where they lie.
    """
    with watch.watching():
        for _ in range(passes):
            logits = forward(tokens)
            if look is not None:
                look(logits)
            del logits
            if tokens.is_cuda:
                torch.cuda.synchronize(tokens.device)
            advance(1)


def run_steps(
    forward: Forward,
    held: Held,
    device: RunDevice,
    tokens: Tensor,
    *,
    steps: int,
    watch: MemoryWatch,
    advance: Advance,
) -> tuple[Steps, Tensor]:
    """Run and time steps.

    Returns:
        What was seen of them, and the logits of the last one, on the CPU.
    """
    timed = Timed(held, device, watch)
    for number in range(steps):
        logits = timed(lambda: forward(tokens), tokens=tokens.numel())
        if number < steps - 1:
            del logits
        advance(1, f"{timed.steps.ms[-1]:,.1f} ms")
    return timed.steps, logits.cpu()


class Timed:
    """Times calls, and takes the difference of the counters around each.

    Attributes:
        steps: What was seen so far.
    """

    def __init__(self, held: Held, device: RunDevice, watch: MemoryWatch) -> None:
        self.steps = Steps()
        self._held = held
        self._device = device
        self._watch = watch

    def __call__(self, call: Callable[[], Any], *, tokens: int) -> Any:
        """Call once; `tokens` is what the call is worth in the rate."""
        before = self._held.stats()
        result, ms = self._device.timed(call)
        after = self._held.stats()
        self._watch.look()
        self.steps.ms.append(ms)
        self.steps.bytes_in.append(after["bytes_in"] - before["bytes_in"])
        self.steps.bytes_out.append(after["bytes_out"] - before["bytes_out"])
        self.steps.tokens.append(tokens)
        log.info(
            "step=%d ms=%.3f bytes_in=%d bytes_out=%d",
            len(self.steps.ms),
            ms,
            self.steps.bytes_in[-1],
            self.steps.bytes_out[-1],
        )
        return result
