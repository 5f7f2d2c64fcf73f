# SPDX-License-Identifier: Apache-2.0
"""Parts of the fusion benchmark that are not plain steps: budgets, and tokens one by one.

Under a budget the model is paged by Penstock, and a pass gives the logits of the last token only,
as the first step of generation does: of all tokens they would be the largest tensor of every
variant, and hide what the layers take. One attachment serves both batches, the smaller one first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from fusion_models import (
    DTYPE,
    EVERYTHING,
    SEQ_LEN,
    config_of,
    forward_step,
    random_model,
    tokens_for,
    variant_of,
)
from fusion_record import Suite
from measure import MemoryWatch, driver_used, release, spread, time_steps

from penstock.fusion import VARIANTS, Decoder, auto, parse
from penstock.fusion.chain import chain_like, random_chain, step_of
from penstock.fusion.parts import parts_for
from penstock.models.configs import GPTConfig
from penstock.models.gpt import GPT, KVCache, PlainParts, build_on_meta
from penstock.models.weights import synthetic_loader
from penstock.paging import attach

if TYPE_CHECKING:
    from penstock.paging.attachment import BaseAttachment

PROMPT, NEW = 128, 64
BATCHES = (1, 8)
PAGED = ("baseline", *VARIANTS, EVERYTHING, "baseline")
DIVISORS = (2.0, 1.5)
# The larger the model, the longer it takes to load into page-locked memory.
SECONDS = {"1.5B": 8.0, "6.7B": 20.0, "13B": 38.0}


def budgets(suite: Suite, model: str) -> None:
    """Passes under 1 / 2 and 1 / 1.5 of the weights."""
    weights = config_of(model).weight_bytes("bfloat16")
    for divisor in DIVISORS:
        for number, name in enumerate(PAGED):
            label = {"work": "budget", "model": model, "fusion": name, "divisor": divisor}
            again = number > 0 and name == "baseline"
            rows = [{**label, "batch": batch, "again": again} for batch in BATCHES]
            if suite.left < SECONDS[model]:
                suite.document["left_out"] += rows
                continue
            with suite.trying(label), paged(model, name, int(weights / divisor)) as job:
                for row in rows:
                    tokens = tokens_for(config_of(model), row["batch"])
                    step = forward_step(job.attached.model, tokens, last=True)
                    suite.keep({**row, **job.measured(step)})


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
        auto.warm(parse(name), config, **how, batch=batch, seq_len=SEQ_LEN, training=training)
        chain = random_chain(config, 1, **how).train(training)
        chain = chain_like(chain, parts, config)
        x_BTD = torch.randn(batch, SEQ_LEN, config.d_model, device="cuda").to(DTYPE)
        step_of(chain, x_BTD)()
        del chain, x_BTD
    release()


def decode(suite: Suite) -> None:
    """Tokens of 1.5B one by one, by the host and as a CUDA graph."""
    config = config_of("1.5B")
    plain = random_model(config)
    for name in ("baseline", EVERYTHING, "attention_projection"):
        model = variant_of(plain, name)
        if name != "baseline":
            auto.warm(parse(name), config, dtype=DTYPE, device="cuda:0", batch=1, seq_len=1)
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
    times = []
    for rounds in range(2):  # the first one captures, and warms up
        cache.reset()
        call(tokens[:, :PROMPT], cache)
        torch.cuda.synchronize()
        for at in range(PROMPT, PROMPT + NEW):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            logits = call(tokens[:, at : at + 1], cache)
            logits[0, -1].argmax().item()  # the token that the next step takes
            end.record()
            end.synchronize()
            if rounds:
                times.append(start.elapsed_time(end))
    return {**spread(times), "prompt": PROMPT, "tokens": NEW}
