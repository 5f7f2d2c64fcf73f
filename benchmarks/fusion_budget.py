# SPDX-License-Identifier: Apache-2.0
"""Parts of the fusion benchmark that are not plain steps: budgets, and tokens one by one.

Under a budget the model is paged by Penstock, and a pass gives the logits of the last token only,
as the first step of generation does: of all tokens they would be the largest tensor of every
variant, and hide what the layers take.
"""

from __future__ import annotations

import gc
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
    timed,
    tokens_for,
    variant_of,
)
from measure import FreeMemoryWatch, spread

from penstock.fusion import VARIANTS, Decoder, auto, parse
from penstock.fusion.modules import parts_for
from penstock.models.gpt import GPT, KVCache, build_on_meta
from penstock.models.weights import synthetic_loader
from penstock.torch import attach

if TYPE_CHECKING:
    from fusion_suite import Suite

PROMPT, NEW = 128, 64
BATCH = 8
PAGED = ("baseline", *VARIANTS, EVERYTHING, "baseline")
DIVISORS = (2.0, 1.5)
# The larger the model, the longer it takes to load into page-locked memory.
SECONDS = {"1.5B": 6.0, "6.7B": 18.0, "13B": 35.0}


def budgets(suite: Suite, model: str) -> None:
    """Passes under 1 / 2 and 1 / 1.5 of the weights."""
    weights = config_of(model).weight_bytes("bfloat16")
    for divisor in DIVISORS:
        for number, name in enumerate(PAGED):
            suite.row(
                "budget",
                SECONDS[model],
                partial(paged_row, model, name, int(weights / divisor)),
                model=model,
                batch=BATCH,
                fusion=name,
                divisor=divisor,
                again=number > 0 and name == "baseline",
            )


def paged_row(model: str, name: str, budget: int) -> dict[str, Any]:
    """One variant under one budget."""
    config, fusion = config_of(model), parse(name)
    if fusion.variants:
        auto.warm(fusion, config, dtype=DTYPE, device="cuda:0", batch=BATCH, seq_len=SEQ_LEN)
    gc.collect()
    torch.cuda.empty_cache()
    tokens = tokens_for(config, BATCH)
    free, held = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    attached = attach(
        build_on_meta(config, dtype=DTYPE, parts=parts_for(fusion)),
        gpu_memory=budget + held,
        device="cuda",
        load=synthetic_loader(config, 0),
    )
    try:
        step = forward_step(attached.model, tokens, last=True)
        found = timed(step, warmups=5, most=9)
        with FreeMemoryWatch() as watch:
            for _ in range(2):
                step()
            torch.cuda.synchronize()
        stats = attached.stats()
        return {
            **found,
            "gpu_memory_bytes": budget,
            "used_by_driver_bytes": free - watch.lowest,
            "bytes_in": stats["iteration_bytes_in"],
            "bytes_out": stats.get("iteration_bytes_out", 0),
            "device_bytes": stats["device_bytes"],
            "link_gb_per_s": round(attached.link()[0], 2),
            "explain": attached.explain(),
        }
    finally:
        attached.detach(keep=False)


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
