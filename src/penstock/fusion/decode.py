# SPDX-License-Identifier: Apache-2.0
"""One token at a time as a CUDA graph: the host starts one thing a token instead of hundreds.

A step of a small model is all launches: hundreds of kernels, each shorter than it takes the host to
start it. `Decoder` captures a step for caches of up to 128, 256, 512 tokens
and so on (a graph has fixed shapes, and attention reads the cache it was captured with), and
replays the smallest that holds the tokens so far. What has changed since, the position, lies on the
device. Everything that a replay touches was allocated before and stays where it is, so the model
must not be paged, nor its parameters replaced, while a Decoder is used.

Prompts and anything but CUDA run as they would without it. One thread at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import UsageError
from penstock.models.configs import GPTConfig
from penstock.models.gpt import KVCache

from .captured import record

_SMALLEST = 128


class StepCache(KVCache):
    """A KVCache whose position may lie on the device.

    Outside `step_of` it is an ordinary one. Within, keys and values go to the place that the
    device's own counter says, and attention gets the first `step_of` places with a mask, so that
    the same kernels serve every position in them.

    Attributes:
        step_of: Places that a step on the device looks at; None for an ordinary cache.
        position: (1,) int64 on the device, the place of the next token.
    """

    def __init__(self, config: GPTConfig, **how: Any) -> None:
        super().__init__(config, **how)
        self.step_of: int | None = None
        self.position = torch.zeros(1, dtype=torch.int64, device=self._kv.device)
        self._bias_1S: Tensor | None = None

    def positions(self, tokens: int) -> Tensor:
        """As `KVCache.positions`."""
        if self.step_of is None:
            return super().positions(tokens)
        # Made once a step, not in each of the layers: attention would turn a mask of bools into
        # this at every call.
        places = torch.arange(self.step_of, device=self.position.device)
        self._bias_1S = torch.zeros(1, self.step_of, dtype=self._kv.dtype, device=places.device)
        self._bias_1S.masked_fill_(places > self.position, float("-inf"))
        return self.position

    def mask(self, tokens: int) -> Tensor | None:
        """As `KVCache.mask`."""
        return super().mask(tokens) if self.step_of is None else self._bias_1S

    def extend(self, layer: int, k_BHTK: Tensor, v_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """As `KVCache.extend`."""
        if self.step_of is None:
            return super().extend(layer, k_BHTK, v_BHTK)
        self._kv[0, layer].index_copy_(2, self.position, k_BHTK)
        self._kv[1, layer].index_copy_(2, self.position, v_BHTK)
        return self._kv[0, layer, :, :, : self.step_of], self._kv[1, layer, :, :, : self.step_of]

    def advance(self, tokens: int) -> None:
        """As `KVCache.advance`; a step on the device is counted by the Decoder."""
        if self.step_of is None:
            super().advance(tokens)


class Decoder:
    """A model for generation: called as the model is, ``decoder(idx_BT, decoder.cache)``.

    Args:
        model: A GPT in eval mode, all of it on one device.
        config: Its shape.
        batch: Sequences side by side.
        max_tokens: Positions to hold; None for all.

    Attributes:
        cache: The keys and values; give it to every call.

    Raises:
        UsageError: If the model is in training mode, or max_tokens is out of range.
    """

    def __init__(
        self, model: nn.Module, config: GPTConfig, *, batch: int = 1, max_tokens: int | None = None
    ) -> None:
        if model.training:
            raise UsageError("a Decoder of a model in training mode", remedy="model.eval()")
        weight = next(model.parameters())
        self._model = model
        self.cache = StepCache(
            config, batch=batch, max_tokens=max_tokens, dtype=weight.dtype, device=weight.device
        )
        self._tokens = torch.zeros(batch, 1, dtype=torch.int64, device=weight.device)
        self._steps: dict[int, tuple[Any, Tensor]] = {}

    @property
    def graphs(self) -> int:
        """How many steps have been captured."""
        return len(self._steps)

    @torch.no_grad()
    def __call__(self, idx_BT: Tensor, cache: KVCache | None) -> Tensor:
        """Logits (B, T, V); those of a replay are overwritten by the next one.

        Raises:
            UsageError: If the cache is not this decoder's, or the tokens do not fit into it.
        """
        if cache is not self.cache:
            raise UsageError("a cache that is not the decoder's", remedy="decoder.cache")
        if idx_BT.shape != self._tokens.shape or self.cache.length == 0:
            return self._model(idx_BT, cache)  # type: ignore[no-any-return]
        return self.step(idx_BT)

    @torch.no_grad()
    def step(self, idx_B1: Tensor) -> Tensor:
        """Logits (B, 1, V) of one token behind those of the cache."""
        cache = self.cache
        if cache.length >= cache.max_tokens:
            raise UsageError(
                f"{cache.length + 1} tokens do not fit in a cache of {cache.max_tokens}",
                remedy="Decoder(max_tokens=...)",
            )
        places = min(cache.max_tokens, max(_SMALLEST, 1 << cache.length.bit_length()))
        self._tokens.copy_(idx_B1)
        cache.position.fill_(cache.length)
        cache.step_of = places
        try:
            logits = self._run(places)
        finally:
            cache.step_of = None
        cache.length += 1
        return logits

    def _run(self, places: int) -> Tensor:
        if self._tokens.device.type != "cuda":
            return self._model(self._tokens, self.cache)  # type: ignore[no-any-return]
        if places not in self._steps:
            # Run more than once it is harmless: it writes the same keys to the same place.
            self._steps[places] = record(lambda: self._model(self._tokens, self.cache))
        graph, logits = self._steps[places]
        graph.replay()
        return logits
