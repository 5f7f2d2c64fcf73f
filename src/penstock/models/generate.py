# SPDX-License-Identifier: Apache-2.0
"""Text token by token: greedy, or by temperature.

Invariant: the same forward, prompt and seed give the same tokens; the draw is made on the CPU, so
that the device decides nothing but the logits. Requests that cannot be met are refused before the
first forward. One thread at a time; the iterator may be dropped at any token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from penstock.errors import FailedError, UsageError
from penstock.models.configs import GPTConfig
from penstock.models.gpt import KVCache

Forward = Callable[[Tensor, KVCache | None], Tensor]


def generate(
    forward: Forward,
    config: GPTConfig,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
    stop_token: int | None = None,
    cache: KVCache | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[int]:
    """Continue a prompt.

    Args:
        forward: The model or anything called like one: ``forward(idx_BT, cache) -> logits_BTV``.
        config: Shape of the model.
        prompt: Token ids, at least one.
        max_new_tokens: How many tokens to add, at most.
        temperature: 0 takes the most likely token each time; larger is more varied.
        seed: Decides the draws.
        stop_token: End before this token.
        cache: An empty cache to use; None runs the whole sequence again for every token.
        device: Where `forward` expects token ids.

    Yields:
        The new token ids, one by one.

    Raises:
        UsageError: If the prompt is empty or, with the new tokens, longer than the model's
            positions or the cache; if a token id or a setting makes no sense.
        FailedError: While drawing, if logits are not numbers.
    """
    _check_request(config, prompt, max_new_tokens, cache)
    if not 0.0 <= temperature < float("inf"):
        raise UsageError(f"temperature is {temperature}", remedy="0 (greedy) or more")
    generator = torch.Generator().manual_seed(seed)

    def tokens() -> Iterator[int]:
        ids = list(prompt)
        fresh = ids
        for _ in range(max_new_tokens):
            with torch.no_grad():
                idx_BT = torch.tensor([fresh], dtype=torch.int64, device=device)
                logits_V = forward(idx_BT, cache)[0, -1].float().cpu()
            token = _draw(logits_V, temperature, generator)
            if token == stop_token:
                return
            yield token
            ids.append(token)
            fresh = ids if cache is None else [token]

    return tokens()


def _draw(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    if bool(logits_V.isnan().any()):
        raise FailedError(
            f"{int(logits_V.isnan().sum()):,} of {logits_V.numel():,} logits are not numbers",
            remedy="another dtype, or weights that are numbers",
        )
    if temperature == 0:
        return int(logits_V.argmax())
    scaled_V = logits_V / temperature
    if not bool(scaled_V.isfinite().all()) and bool(logits_V.isfinite().all()):
        scaled_V = logits_V - logits_V.max()  # so cold that only the most likely is left
        scaled_V[scaled_V < 0] = -torch.inf
    probabilities = torch.softmax(scaled_V, dim=0)
    return int(torch.multinomial(probabilities, 1, generator=generator))


def _check_request(
    config: GPTConfig, prompt: Sequence[int], max_new_tokens: int, cache: KVCache | None
) -> None:
    if not prompt:
        raise UsageError("the prompt is empty", remedy="a prompt of one token or more")
    if max_new_tokens < 1:
        raise UsageError(f"{max_new_tokens} tokens to generate", remedy="1 or more")
    wrong = [token for token in prompt if not 0 <= token < config.vocab_size]
    if wrong:
        raise UsageError(
            f"token {wrong[0]} of the prompt is not in {config.name}'s vocabulary of "
            f"{config.vocab_size}",
            remedy="the checkpoint's own tokenizer",
        )
    if cache is not None and cache.length:
        raise UsageError(f"the cache holds {cache.length} tokens already", remedy="cache.reset()")
    # The last new token is never fed back, so it needs no position.
    needed = len(prompt) + max_new_tokens - 1
    room = config.n_positions if cache is None else cache.max_tokens
    if needed > room:
        left = room - len(prompt) + 1
        raise UsageError(
            f"a prompt of {len(prompt)} tokens and {max_new_tokens} new ones, but there is room "
            f"for {room} positions",
            remedy=f"{left} new tokens or fewer" if left > 0 else "a shorter prompt",
        )
