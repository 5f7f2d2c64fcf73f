# SPDX-License-Identifier: Apache-2.0
"""``--check``: the same work on the resident baseline, compared bit for bit.

Fused or compiled layers compute the same function with other roundings, so their outputs are
compared by the root mean square of the difference, against what roundings can make of it.

The baseline runs first and is gone before the model under test is loaded, so that the host, and
the card, hold one of the two at a time. Its logits wait on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from penstock.fusion.variants import BASELINE
from penstock.report.progress import Progress

from .device import MemoryWatch, RunDevice
from .modes import hold
from .request import Request
from .steps import forward_of, made_up_tokens, run_steps, warm_up
from .subject import Subject
from .text import write

# Times of the emulated GPU say nothing, so one step has to do there.
TIMED_STEPS = 5
# Of the root mean square of the logits. Between variants and the baseline, 12 layers of gpt2_small
# on the CPU, up to 7e-7, 1.3e-3 and 7.3e-3 were measured; without one of 12 attentions it is 0.24.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}


@dataclass
class Reference:
    """What the resident baseline gave.

    Attributes:
        logits: Of the timed steps' input; None where none was asked for.
        text_logits: Of every forward of the text; empty where none was asked for.
        step_ms: Its steps; empty where none was asked for, or on the emulated GPU.
    """

    logits: Tensor | None = None
    text_logits: list[Tensor] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)


@dataclass
class Comparison:
    """Outputs held against those of the baseline, so far.

    Attributes:
        tolerance: How far an output may be off, as a share of its root mean square; 0 compares
            bit for bit.
        outputs: How many were compared.
        different: How many of them differ in a bit, or by more than the tolerance, or are held
            against an output without a finite number.
        max_abs_diff: The largest difference of two logits; infinite if shapes
            differ or one is not a number.
        max_relative_rms: The largest such share found; 0 where outputs are compared bit for bit.
    """

    tolerance: float = 0.0
    outputs: int = 0
    different: int = 0
    max_abs_diff: float = 0.0
    max_relative_rms: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether something was compared and none of it was different."""
        return self.outputs > 0 and self.different == 0

    def add(self, got: Tensor, wanted: Tensor) -> None:
        """Compare one output; `got` may lie on any device."""
        self.outputs += 1
        got, wanted = got.detach().cpu().contiguous(), wanted.contiguous()
        alike = got.shape == wanted.shape and got.dtype == wanted.dtype
        if not alike or not wanted.isfinite().any():  # of such a baseline nothing can be held
            self.different += 1
            self.max_abs_diff = float("inf")
            self.max_relative_rms = float("inf")
        elif not torch.equal(got.view(torch.uint8), wanted.view(torch.uint8)):
            distance = (got.double() - wanted.double()).abs().nan_to_num(nan=math.inf)
            self.max_abs_diff = max(self.max_abs_diff, float(distance.max()))
            if self.tolerance:
                size = float(wanted.double().square().mean().sqrt())
                share = float(distance.square().mean().sqrt()) / max(size, 1e-30)
                self.max_relative_rms = max(self.max_relative_rms, share)
                self.different += share > self.tolerance
            else:
                self.different += 1

    def add_all(self, got: list[Tensor], wanted: list[Tensor]) -> None:
        """Compare two lists; what one has and the other has not is different."""
        for one, other in zip(got, wanted, strict=False):
            self.add(one, other)
        surplus = abs(len(got) - len(wanted))
        self.outputs += surplus
        self.different += surplus


def run_reference(
    request: Request, subject: Subject, device: RunDevice, progress: Progress
) -> Reference:
    """Run the resident baseline on the work of the request, without CUDA graphs.

    Raises:
        OutOfMemory: If the resident model does not fit.
    """
    request = replace(request, fusion=BASELINE, cuda_graph=False)
    reference = Reference()
    watch = MemoryWatch(device)
    with hold(request, subject, device, "resident", progress) as held:
        if request.prompt is not None:
            with progress.stage("resident baseline: text", 1) as advance:
                written = write(
                    request, subject, held, device, watch=watch, on_text=lambda piece: None
                )
                advance(1)
            reference.text_logits = written.logits
        if request.timed_steps:
            tokens = made_up_tokens(request, subject, device)
            warmups = request.warmups if device.is_cuda else 0
            steps = min(request.timed_steps, TIMED_STEPS) if device.is_cuda else 1
            with progress.stage("resident baseline", warmups + steps) as advance:
                forward = forward_of(request, held, tokens)
                warm_up(forward, tokens, passes=warmups, watch=watch, advance=advance)
                seen, reference.logits = run_steps(
                    forward, held, device, tokens, steps=steps, watch=watch, advance=advance
                )
            reference.step_ms = seen.ms if device.is_cuda else []
    return reference
