# SPDX-License-Identifier: Apache-2.0
"""Part of the fusion benchmark: what auto chooses, and whole models with it and without.

    python benchmarks/fusion_suite.py --parts auto --output benchmarks/results/fusion/h200-auto.json

The tables by which auto is judged and nothing else: the baseline, each single variant, what was
chosen, the baseline again. No peaks, no kernels, no sets that were not chosen.
"""

from __future__ import annotations

import time

import torch
from fusion_models import (
    DTYPE,
    SEQ_LEN,
    SINGLE,
    Member,
    config_of,
    forward_step,
    random_model,
    tokens_for,
    training_step,
    variant_of,
)
from fusion_record import Suite

from penstock.fusion import auto
from penstock.models.gpt import GPT

# Batch, and whether it is training.
SHAPES = {
    "1.5B": ((1, False), (8, False), (1, True), (4, True)),
    "6.7B": ((1, False), (8, False), (1, True)),
    "13B": ((1, False), (8, False)),
}
# Less than where peaks and compilers are measured as well: nothing else is looked for here.
ROW_MS = 700.0


def tune(suite: Suite, model: str, plain: GPT, batch: int, *, training: bool) -> str:
    """What auto chooses for the shape; the ops inside are measured on the way."""
    config, begin = plain.config, time.monotonic()
    with torch.autograd.set_multithreading_enabled(False):  # as the steps of the tables
        outcome = auto.measure(
            config, dtype=DTYPE, device="cuda:0", batch=batch, seq_len=SEQ_LEN, training=training
        )
    suite.document.setdefault("auto", []).append(
        {
            "model": model,
            "batch": batch,
            "training": training,
            "dropout": config.dropout,
            "fusion": outcome.name,
            "seconds": round(time.monotonic() - begin, 2),
            "heats": outcome.figures(),
        }
    )
    return outcome.name


def tables(suite: Suite, model: str) -> None:
    """One table a shape of a model, all on the same weights."""
    plain = random_model(config_of(model))
    for batch, training in SHAPES[model]:
        plain.train(training)
        work = f"{'training' if training else 'prefill'}, for auto"
        with suite.trying({"work": work, "model": model, "batch": batch}):
            chosen = tune(suite, model, plain, batch, training=training)
            names = ["baseline", *SINGLE, *([chosen] if "," in chosen else []), "baseline"]
            members = [_member(plain, work, model, name, batch) for name in names]
            members[-1].label["again"] = True
            suite.table(3, members, row_ms=ROW_MS)
            plain.zero_grad(set_to_none=True)


def _member(plain: GPT, work: str, model: str, name: str, batch: int) -> Member:
    variant, tokens = variant_of(plain, name), tokens_for(plain.config, batch)
    label = {"work": work, "model": model, "batch": batch, "fusion": name}
    if plain.training:
        label["dropout"] = plain.config.dropout
    step = (training_step if plain.training else forward_step)(variant, tokens)
    return Member(label, step, dict)
