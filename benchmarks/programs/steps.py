# SPDX-License-Identifier: Apache-2.0
"""How the programs here are told what to do, time a step, tell what it gave, and train a GPT-2.

Knows nothing of Penstock, and imports only what is asked for: some programs have no torch.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SHAPES = {
    "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    "6.7b": {"n_embd": 4096, "n_layer": 32, "n_head": 32, "n_positions": 2048},
    "short": {"n_embd": 2560, "n_layer": 12, "n_head": 20},
    "small": {"n_embd": 256, "n_layer": 4, "n_head": 4},
}


def script_parser(doc: str | None) -> argparse.ArgumentParser:
    """A program's, described by the first line of its text."""
    return argparse.ArgumentParser(description=(doc or "").split("\n")[0])


@contextmanager
def timed(times: list[float], wait: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """Add a step's milliseconds to a list; `wait` is for what was given to the device."""
    wait()
    begin = time.perf_counter()
    yield
    wait()
    times.append(round((time.perf_counter() - begin) * 1e3, 3))


def repeat_bit_for_bit(*, warn_only: bool = False) -> None:
    """Only kernels that add up in one order, whatever else the device is doing.

    Fused attention's backward does not by default (attention_order.py). Call it before the device
    is used, for cuBLAS. `warn_only` is for those who use operators that have no such kernel.
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=warn_only)


def digest(tensor: Any) -> str:
    """Of a tensor's bits."""
    import torch

    raw = tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]


def gpt2(shape: str, **more: Any) -> Any:
    """On the card, in torch's default type."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("cuda"):
        return GPT2LMHeadModel(GPT2Config(**SHAPES[shape], **more))


def trained_gpt2(shape: str) -> Any:
    """One that is trained, without dropout."""
    return gpt2(shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).train()


def train(model: Any, steps: int, shape: tuple[int, int], rank: int = 0) -> dict[str, Any]:
    """Train a language model with AdamW under autocast, on four batches by turns.

    Args:
        model: It, on the card.
        steps: How many.
        shape: Of a batch of tokens.
        rank: Of several processes that train together: their losses are summed up.

    Returns:
        Every step's time, its loss as a digest, and what torch had allocated at most.
    """
    import torch
    from torch import distributed

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    result: dict[str, Any] = {"step_ms": [], "digests": []}
    for step in range(steps):
        torch.manual_seed(100 + step % 4 + 10 * rank)
        tokens = torch.randint(0, 50257, shape).cuda()
        with timed(result["step_ms"], torch.cuda.synchronize):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if distributed.is_initialized():
                loss = loss.detach().clone()
                distributed.all_reduce(loss)
        result["digests"].append(float(loss).hex())
    result["need_bytes"] = torch.cuda.max_memory_allocated()
    return result
