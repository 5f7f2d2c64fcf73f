# SPDX-License-Identifier: Apache-2.0
"""Text from a prompt: every forward is a step, the first of the prompt, the rest of one token.

Keys and values of earlier tokens are kept, in memory of the device that is part of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from penstock.fusion.decode import Decoder
from penstock.models.generate import generate
from penstock.models.gpt import KVCache, torch_dtype

from .device import MemoryWatch, RunDevice
from .figures import Steps
from .modes import Held
from .request import Request
from .steps import Timed
from .subject import Subject

OnText = Callable[[str], None]


@dataclass(frozen=True)
class Written:
    """What came of a prompt.

    Attributes:
        text: The continuation.
        tokens: How many tokens it has.
        steps: One a forward.
        logits: Logits of the next token, one tensor a forward, on the CPU.
    """

    text: str
    tokens: int
    steps: Steps
    logits: list[Tensor]


def write(
    request: Request,
    subject: Subject,
    held: Held,
    device: RunDevice,
    *,
    watch: MemoryWatch,
    on_text: OnText,
) -> Written:
    """Continue the prompt.

    Args:
        request: Says how many tokens, and how they are drawn.
        subject: Has a tokenizer and the prompt in tokens.
        held: The model.
        device: Where it runs.
        watch: Sees the memory taken.
        on_text: Given the text piece by piece, as it comes.
    """
    assert subject.tokenizer is not None
    timed = Timed(held, device, watch)
    logits: list[Tensor] = []

    def forward(idx_BT: Tensor, cache: KVCache | None) -> Tensor:
        result: Tensor = timed(lambda: model(idx_BT, cache), tokens=1)
        last = result[:, -1:]
        logits.append(last.cpu())
        return last

    drawn: list[int] = []

    def counted(tokens: Iterator[int]) -> Iterator[int]:
        for token in tokens:
            drawn.append(token)
            yield token

    model, cache = _model_and_cache(request, subject, held, device)
    tokens = generate(
        forward,
        subject.config,
        subject.prompt_ids,
        max_new_tokens=request.new_tokens,
        temperature=request.temperature,
        seed=request.seed,
        stop_token=subject.tokenizer.end_id,
        cache=cache,
        device=device.torch_device,
    )
    pieces = []
    for piece in subject.tokenizer.decode_stream(counted(tokens)):
        on_text(piece)
        pieces.append(piece)
    return Written("".join(pieces), len(drawn), timed.steps, logits)


def _model_and_cache(
    request: Request, subject: Subject, held: Held, device: RunDevice
) -> tuple[Callable[[Tensor, KVCache | None], Tensor], KVCache]:
    """What is called for each token: the model, or CUDA graphs of it where it may be captured.

    A graph holds addresses, so what it was captured with must stay where it is: not with paging.
    """
    tokens = len(subject.prompt_ids) + request.new_tokens - 1
    captured = "attention_projection" in request.fusion and not request.compile
    if (captured or request.cuda_graph) and device.is_cuda and request.memory == "resident":
        decoder = Decoder(held.model, subject.config, max_tokens=tokens)
        return decoder, decoder.cache
    cache = KVCache(
        subject.config,
        max_tokens=tokens,
        dtype=torch_dtype(subject.dtype),
        device=device.torch_device,
    )
    return held.model, cache
