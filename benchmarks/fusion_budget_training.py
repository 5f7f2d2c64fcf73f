# SPDX-License-Identifier: Apache-2.0
"""Part of the fusion benchmark: training steps of every variant under budgets.

A budget is the peak of the baseline's resident step (weights, gradients, activations) divided by 2
or 1.5. The optimizer is plain SGD, which has no state: weights come in for forward and for backward
and go out once they are updated, and gradients never exist all together. Variants whose activations
alone exceed a budget cannot run in it; their rows say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from fusion_budget import DIVISORS, PAGED, Paged, load_kernels
from fusion_models import (
    DTYPE,
    config_of,
    forward_peak,
    peak_of,
    random_model,
    tokens_for,
    training_step,
    variant_of,
)
from fusion_record import Suite
from measure import driver_used
from torch import Tensor

from penstock import attach_training
from penstock.errors import OutOfMemory
from penstock.fusion import parse
from penstock.fusion.parts import parts_for
from penstock.models.configs import GPTConfig
from penstock.models.gpt import build_on_meta
from penstock.models.weights import synthetic_loader

if TYPE_CHECKING:
    from penstock.paging import TrainingAttachment

# A row's, loading included.
SECONDS = {"1.5B": 10.0, "6.7B": 25.0, "13B": 45.0}


def training_budgets(suite: Suite, model: str, batch: int) -> None:
    """Training steps in 1 / 2 and 1 / 1.5 of what the baseline takes by itself."""
    config = config_of(model)
    peak, activations = resident(config, batch)
    for divisor in DIVISORS:
        for number, name in enumerate(PAGED):
            row = {
                "work": "training, budget",
                "model": model,
                "batch": batch,
                "fusion": name,
                "divisor": divisor,
                "dropout": config.dropout,
                "again": number > 0 and name == "baseline",
                "resident_peak_bytes": peak,
                "activation_peak_bytes": activations[name],
            }
            budget = int(peak / divisor)
            if activations[name] > budget:
                suite.keep({**row, "gpu_memory_bytes": budget, "fits": False})
            elif suite.left < SECONDS[model]:
                suite.document["left_out"].append(row)
            else:
                with suite.trying(row):
                    suite.keep({**row, **training_row(config, name, batch, budget)})


def resident(config: GPTConfig, batch: int) -> tuple[int, dict[str, int]]:
    """Peak of the baseline's step, and of every variant's activations, in bytes."""
    plain, tokens = random_model(config).train(), tokens_for(config, batch)
    weights = sum(parameter.nbytes for parameter in plain.parameters())
    peak = peak_of(training_step(plain, tokens))
    activations = {}
    for name in dict.fromkeys(PAGED):
        activations[name] = forward_peak(variant_of(plain, name), tokens) - weights
        plain.zero_grad(set_to_none=True)
    return peak, activations


def training_row(config: GPTConfig, name: str, batch: int, budget: int) -> dict[str, Any]:
    """One variant under one budget."""
    load_kernels(config, name, (batch,), training=True)
    before, held = driver_used(), torch.cuda.memory_reserved()
    model = build_on_meta(config, dtype=DTYPE, parts=parts_for(parse(name))).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = {"gpu_memory": budget + held, "device": "cuda", "load": synthetic_loader(config, 0)}
    try:
        with attach_training(model, optimizer, step_in_backward=True, **options) as attached:
            try:
                step = whole_step(attached, tokens_for(config, batch))
                return Paged(attached, before).measured(step)
            finally:
                attached.detach(keep=False)
    except (OutOfMemory, torch.OutOfMemoryError) as error:
        return {"gpu_memory_bytes": budget, "fits": False, "error": str(error)[:300]}


def whole_step(attached: TrainingAttachment, tokens: Tensor) -> Callable[[], None]:
    """Forward, backward in the calling thread as in the resident tables, and the update."""
    backward = training_step(attached.model, tokens)
    optimizer = attached.optimizer

    def step() -> None:
        backward()
        optimizer.step()

    return step
