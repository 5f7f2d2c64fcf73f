# SPDX-License-Identifier: Apache-2.0
"""The result of a run, as JSON gives it: the keys that scripts rely on, then what helps."""

from __future__ import annotations

import hashlib
import statistics
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from penstock.fusion.variants import Fusion
from penstock.results import with_head

from .check import Comparison, Reference
from .device import RunDevice
from .figures import Ideal, Steps, ideal_step
from .request import Request
from .subject import Subject
from .text import Written


@dataclass
class Outcome:
    """What was seen while a model was held.

    Attributes:
        steps: The timed steps, where there were any.
        logits: Of the last timed step, on the CPU.
        written: The continuation of the prompt, where there was one.
        stats: The counters at the end.
        explain: One line on why it took as long as it did.
        driver_peak: Most device memory taken, by the driver's word; None on the emulated GPU.
        counted: Whether the bytes moved are known.
        fusion: Variants that ran.
    """

    steps: Steps | None = None
    logits: Tensor | None = None
    written: Written | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    explain: str = ""
    driver_peak: int | None = None
    counted: bool = True
    fusion: Fusion = field(default_factory=Fusion)

    def main_steps(self) -> Steps:
        """The steps that the figures are about: the timed ones, or else those of the text."""
        steps = self.steps or (self.written.steps if self.written else None)
        assert steps is not None
        return steps

    def last_logits(self) -> Tensor:
        """Logits of the last of the main steps."""
        if self.logits is not None:
            return self.logits
        assert self.written is not None
        return self.written.logits[-1]


def document(
    request: Request,
    subject: Subject,
    device: RunDevice,
    outcome: Outcome,
    reference: Reference | None,
    comparison: Comparison | None,
) -> dict[str, Any]:
    """Put the result together.

    Returns:
        Sizes in bytes, times in ms, rates in decimal GB/s; lists have one entry a step.
        `ideal_ms` and `ratio_to_ideal` are None where no bound is known, and on the emulated GPU,
        which has none. Where a driver pages on demand, `bytes_counted` is False and bytes_in,
        bytes_out and hit_ratio are 0.
    """
    steps, stats = outcome.main_steps(), outcome.stats
    peak = outcome.driver_peak
    if peak is None and outcome.counted:
        peak = stats["peak_device_bytes"]
    ideal = _ideal(request, outcome, reference)
    if device.name == "emulated":  # whose times say nothing about a GPU
        ideal = replace(ideal, ms=None)
    ratio = steps.median_ms / ideal.ms if ideal.ms else None
    timed = outcome.steps is not None
    values = {
        "model": subject.config.name,
        "device": device.name,
        "memory": request.memory,
        **{key: stats[key] for key in ("gpu_memory_bytes", "weight_bytes")},
        **{key: stats[key] for key in ("hit_ratio", "link_gb_per_s")},
        "step_ms": steps.ms,
        "tokens_per_second": steps.tokens_per_second,
        "bytes_in": steps.bytes_in,
        "bytes_out": steps.bytes_out,
        "peak_device_bytes": peak,
        "ideal_ms": ideal.ms,
        "ratio_to_ideal": ratio,
        "output_sha256": sha256(outcome.last_logits()),
        "torch": torch.__version__,
        "device_name": device.label,
        "fusion": outcome.fusion.name,
        "fusion_asked": request.fusion,
        "compile": request.compile,
        "cuda_graph": request.cuda_graph,
        "dtype": subject.dtype,
        "batch": request.batch if timed else 1,
        "seq_len": request.tokens_in_a_sequence(subject.config) if timed else None,
        "steps": len(steps.ms),
        "warmups": request.warmups if timed else 0,
        "seed": request.seed,
        "weights": subject.source,
        "bytes_counted": outcome.counted,
        "compute_ms": ideal.compute_ms,
        "compute_from": ideal.compute_from,
        "room_bytes": ideal.room_bytes,
        "explain": outcome.explain,
        "check": _check(reference, comparison),
        "text": _text(request, outcome.written),
        "counters": stats,
    }
    return with_head("gpt", values)


def sha256(logits: Tensor) -> str:
    """SHA-256 of the bytes of a tensor, in their order in memory."""
    flat = logits.detach().cpu().contiguous().view(torch.uint8).reshape(-1)
    raw: Any = flat.numpy()  # the buffer protocol is not among its declared types
    return hashlib.sha256(raw).hexdigest()


def _ideal(request: Request, outcome: Outcome, reference: Reference | None) -> Ideal:
    steps, stats = outcome.main_steps(), outcome.stats
    resident_ms = statistics.median(reference.step_ms) if reference and reference.step_ms else None
    if request.memory == "resident":
        return Ideal(steps.median_ms, steps.median_ms, "own steps", stats["device_bytes"])
    moved = any(steps.bytes_in) or not outcome.counted
    others = 0
    if outcome.driver_peak is not None and outcome.counted:
        others = max(0, outcome.driver_peak - stats["device_bytes"])
        if request.memory == "managed":
            # The driver keeps the device memory of evicted pages, so that its figure says
            # nothing: take what the set was given.
            others = max(0, stats["gpu_memory_bytes"] - stats["budget"])
    return ideal_step(
        # Embedding tables that stay on the host do not cross the link: a pass reads rows of them.
        touched=stats["paged_bytes"] + stats["pinned_bytes"],
        budget=stats["gpu_memory_bytes"],
        others=others,
        link_gb_per_s=stats["link_gb_per_s"],
        resident_ms=resident_ms,
        profiled_ms=stats.get("compute_ms") if moved else None,
        own_ms=None if moved else steps.median_ms,
        step_ms=steps.median_ms,
    )


def _check(reference: Reference | None, comparison: Comparison | None) -> dict[str, Any] | None:
    if reference is None or comparison is None:
        return None
    return {
        "equal": comparison.equal,
        **asdict(comparison),
        "resident_step_ms": reference.step_ms,
    }


def _text(request: Request, written: Written | None) -> dict[str, Any] | None:
    if written is None:
        return None
    return {
        "prompt": request.prompt,
        "text": written.text,
        "tokens": written.tokens,
        "temperature": request.temperature,
        "token_ms": written.steps.ms,
        "tokens_per_second": written.steps.tokens_per_second,
    }
