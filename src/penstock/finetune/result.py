# SPDX-License-Identifier: Apache-2.0
"""The result of a fine-tune, as JSON gives it: the keys that scripts rely on, then what helps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from penstock.results import with_head

from .loop import Loop
from .memory import MemoryFigures
from .model import Plan
from .request import Request
from .search import Found


def document(
    request: Request,
    plan: Plan,
    loop: Loop,
    ranks: list[MemoryFigures],
    found: Found | None = None,
) -> dict[str, Any]:
    """Put the result together.

    Returns:
        Sizes in bytes, times in ms; lists have one entry a step, those before a resume included.
        Of several processes memory is that of the one that reserved most; `ranks` has them all.
    """
    history = loop.history
    counters = loop.engine.stats()
    emulated = loop.engine.device.name == "emulated"  # whose times say nothing about a GPU
    ideal = None if emulated else ideal_ms(counters, history.median_ms)
    memory = max(ranks, key=lambda each: each.reserved)
    values = {
        "model": plan.name,
        "strategy": request.strategy,
        "allocator": request.allocator,
        "loss": history.loss,
        "step_ms": history.step_ms,
        "tokens_per_second": history.tokens_per_second,
        **_work(request, plan, loop, found),
        "memory_figures": memory.source,
        "memory": "paged" if request.paged else "resident",
        **_peaks(memory),
        "bytes_in": history.bytes_in,
        "bytes_out": history.bytes_out,
        "ranks": [{**_peaks(each), "allocator_counters": each.counters} for each in ranks],
        "budget_bytes": counters.get("gpu_memory_bytes"),
        "ideal_ms": ideal,
        "ratio_to_ideal": history.median_ms / ideal if ideal and history.median_ms else None,
        "memory_over_time": asdict(memory.curve),
        "counters": counters,
    }
    return with_head("finetune", values)


def ideal_ms(counters: dict[str, Any], median_ms: float | None) -> float | None:
    """The shortest step by the pager's own profile, in ms; None where the profile cannot tell.

    It is compute without stalls, or the least that has to be copied. Every eighth step is profiled.
    In the first everything is made: it took 37 s where others took 1.5. One that was itself slower
    than most gives a ratio below 1, which is then told as what it is: a wrong ideal.
    """
    ideal = counters.get("ideal_ms")
    if not ideal or median_ms is None or counters.get("profiled_iterations", 0) < 2:
        return None
    return float(ideal)


def _work(request: Request, plan: Plan, loop: Loop, found: Found | None) -> dict[str, Any]:
    """What ran, on what, and how far it came."""
    history, device = loop.history, loop.engine.device
    parameters = list(loop.engine.model.parameters())
    return {
        "torch": torch.__version__,
        "device": device.name,
        "device_name": device.label,
        "engine": request.engine,
        "gpus": request.gpus,
        "batch": loop.batch,
        "seq_len": request.longest(plan.positions),
        "largest_batch": found.batch if found else None,
        "tries": found.tries if found else [],
        "lengths": request.lengths,
        "data": request.data,
        "dtype": request.dtype,
        "lr": request.learning_rate,
        "seed": request.seed,
        "steps": history.done,
        "timed_from": history.timed_from,
        "resumed_at": history.resumed_at,
        "median_step_ms": history.median_ms,
        "step_tokens": history.tokens,
        "step_shapes": [list(shape) for shape in history.shape],
        "evaluations": [{"step": step, "loss": loss} for step, loss in history.evaluations],
        "gpu_memory": request.settings.gpu_memory,
        "parameters": sum(map(_count, parameters)),
        "trained_parameters": sum(_count(each) for each in parameters if each.requires_grad),
    }


def _count(parameter: torch.Tensor) -> int:
    """Elements of a parameter, also of one that ZeRO has taken apart."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _peaks(memory: MemoryFigures) -> dict[str, Any]:
    return {
        "peak_requested_bytes": memory.requested,
        "peak_active_bytes": memory.active,
        "peak_reserved_bytes": memory.reserved,
        "utilisation": memory.utilisation,
        "peak_device_bytes": memory.device,
        "driver_calls": memory.driver_calls,
    }
