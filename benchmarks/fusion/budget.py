# SPDX-License-Identifier: Apache-2.0
"""Parts of the fusion benchmark that are not plain steps: budgets, and tokens one by one.

Under a budget the model is paged by Penstock, and a pass gives the logits of the last token only,
as the first step of generation does: of all tokens they would be the largest tensor of every
variant, and hide what the layers take. One attachment serves both batches, the smaller one first.

A budget of training is the peak of the baseline's resident step (weights, gradients, activations)
divided. The optimizer is plain SGD, which has no state: weights come in for forward and for
backward and go out once they are updated, and gradients never exist all together. Variants whose
activations alone exceed a budget cannot run in it; their rows say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from kit.measure import MemoryWatch, driver_used, release, spread, time_steps
from torch import Tensor

from fusion.models import (
    DTYPE,
    EVERYTHING,
    SEQ_LEN,
    Suite,
    config_of,
    forward_peak,
    forward_step,
    peak_of,
    random_model,
    tokens_for,
    training_step,
    variant_of,
)
from penstock import attach_training
from penstock.errors import OutOfMemory
from penstock.fusion import VARIANTS, Decoder, auto, parse
from penstock.fusion.chain import chain_like, random_chain, step_of
from penstock.fusion.parts import parts_for
from penstock.models.configs import GPTConfig
from penstock.models.gpt import GPT, KVCache, PlainParts, build_on_meta
from penstock.models.weights import synthetic_loader
from penstock.paging import attach

if TYPE_CHECKING:
    from penstock.paging import TrainingAttachment
    from penstock.paging.attachment import BaseAttachment

PROMPT, NEW = 128, 64
BATCHES = (1, 8)
PAGED = ("baseline", *VARIANTS, EVERYTHING, "baseline")
DIVISORS = (2.0, 1.5)
# The larger the model, the longer it takes to load into page-locked memory.
SECONDS = {"1.5B": 8.0, "6.7B": 20.0, "13B": 38.0}
SECONDS_TRAINING = {"1.5B": 10.0, "6.7B": 25.0, "13B": 45.0}


def variants(size: int) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Name, budget in bytes and label of each variant within each part of `size`."""
    for divisor in DIVISORS:
        for number, name in enumerate(PAGED):
            again = number > 0 and name == "baseline"
            yield name, int(size / divisor), {"fusion": name, "divisor": divisor, "again": again}


def budgets(suite: Suite, model: str) -> None:
    """Passes under 1 / 2 and 1 / 1.5 of the weights."""
    for name, budget, what in variants(config_of(model).weight_bytes("bfloat16")):
        label = {"work": "budget", "model": model, **what}
        rows = [{**label, "batch": batch} for batch in BATCHES]
        if suite.left < SECONDS[model]:
            suite.document["left_out"] += rows
            continue
        with suite.trying(label), paged(model, name, budget) as job:
            for row in rows:
                tokens = tokens_for(config_of(model), row["batch"])
                step = forward_step(job.attached.model, tokens, last=True)
                suite.add({**row, **job.measured(step)})


@dataclass
class Paged:
    """A model under a budget.

    Attributes:
        attached: What pages it.
        before: Bytes of device memory that were in use before.
    """

    attached: BaseAttachment[Any]
    before: int

    def measured(self, step: Callable[[], Any]) -> dict[str, Any]:
        """Times of steps, the bytes that one moves, and device memory at the most."""
        # The first steps load what has no place yet, find the order of uses and settle the room.
        times = time_steps(step, warmups=6, steps=10)
        with MemoryWatch() as watch:
            step()
            torch.cuda.synchronize()
        stats = self.attached.stats()
        return {
            **spread(times),
            "gpu_memory_bytes": stats.gpu_memory_bytes,
            "used_by_driver_bytes": watch.highest - self.before,
            "bytes_in": stats.iteration_bytes_in,
            "bytes_out": stats.iteration_bytes_out,
            "device_bytes": stats.device_bytes,
            "link_gb_per_s": round(stats.link_gb_per_s, 2),
        }


@contextmanager
def paged(model: str, name: str, budget: int) -> Iterator[Paged]:
    """A variant under a budget, whose kernels have been loaded: those take memory once."""
    config, fusion = config_of(model), parse(name)
    load_kernels(config, name, BATCHES)
    before, held = driver_used(), torch.cuda.memory_reserved()
    attached = attach(
        build_on_meta(config, dtype=DTYPE, parts=parts_for(fusion)),
        gpu_memory=budget + held,
        device="cuda",
        load=synthetic_loader(config, 0),
    )
    try:
        yield Paged(attached, before)
    finally:
        attached.detach(keep=False)


def load_kernels(
    config: GPTConfig, name: str, batches: tuple[int, ...], *, training: bool = False
) -> None:
    """Run one layer of a variant, measure what its ops choose from, and leave nothing behind."""
    release()
    how = {"dtype": DTYPE, "device": "cuda:0"}
    parts = parts_for(name) or PlainParts()
    for batch in batches:
        step = auto.Step(config, **how, batch=batch, seq_len=SEQ_LEN, training=training)
        auto.warm(parse(name), step)
        chain = random_chain(config, 1, **how).train(training)
        chain = chain_like(chain, parts, config)
        x_BTD = torch.randn(batch, SEQ_LEN, config.d_model, device="cuda").to(DTYPE)
        step_of(chain, x_BTD)()
        del chain, x_BTD
    release()


def training_budgets(suite: Suite, model: str, batch: int) -> None:
    """Training steps in 1 / 2 and 1 / 1.5 of what the baseline takes by itself."""
    config = config_of(model)
    peak, activations = resident(config, batch)
    for name, budget, what in variants(peak):
        row = {
            **{"work": "training, budget", "model": model, "batch": batch, **what},
            "dropout": config.dropout,
            "resident_peak_bytes": peak,
            "activation_peak_bytes": activations[name],
        }
        if activations[name] > budget:
            suite.add({**row, "gpu_memory_bytes": budget, "fits": False})
        elif suite.left < SECONDS_TRAINING[model]:
            suite.document["left_out"].append(row)
        else:
            with suite.trying(row):
                suite.add({**row, **training_row(config, name, batch, budget)})


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


def decode(suite: Suite) -> None:
    """Tokens of 1.5B one by one, by the host and as a CUDA graph."""
    config = config_of("1.5B")
    plain = random_model(config)
    for name in ("baseline", EVERYTHING, "attention_projection"):
        model = variant_of(plain, name)
        if name != "baseline":
            step = auto.Step(config, dtype=DTYPE, device="cuda:0", batch=1, seq_len=1)
            auto.warm(parse(name), step)
        for captured in (False, True):
            suite.row(
                "decode",
                6,
                partial(decode_row, model, captured),
                model="1.5B",
                batch=1,
                fusion=name,
                captured=captured,
            )


@torch.no_grad()
def decode_row(model: GPT, captured: bool) -> dict[str, Any]:
    """Milliseconds a token behind a prompt."""
    config = model.config
    tokens = tokens_for(config, 1, PROMPT + 2 * NEW)
    decoder = Decoder(model, config) if captured else None
    cache = decoder.cache if decoder else KVCache(config, dtype=DTYPE, device="cuda")
    call = decoder or model
    for _ in range(2):  # the first one captures, and warms up
        cache.reset()
        call(tokens[:, :PROMPT], cache)
        rest = iter(tokens[:, PROMPT:].split(1, dim=1))

        def step(rest: Iterator[Tensor] = rest) -> None:
            call(next(rest), cache)[0, -1].argmax().item()  # the token that the next step takes

        times = time_steps(step, warmups=0, steps=NEW)
    return {**spread(times), "prompt": PROMPT, "tokens": NEW}
