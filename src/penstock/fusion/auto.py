# SPDX-License-Identifier: Apache-2.0
"""``--fusion auto``: the variants that were measured fastest for this GPU, dtype and shape.

Two blocks and the norm behind them are made of one block's random weights, every combination of
variants runs on them, and the fastest is kept on disk (`tuning`). Costs the memory of one block
and a few seconds the first time; nothing afterwards. Where there is no GPU it is the baseline:
times of a CPU say nothing about one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from penstock.models.configs import GPTConfig
from penstock.models.gpt import Parts, PlainParts, torch_dtype

from . import tuning
from .modules import parts_for
from .variants import BASELINE, VARIANTS, Fusion, parse


def combinations() -> list[str]:
    """The baseline, then every set of variants, smaller sets first."""
    sets = (
        ",".join(chosen)
        for count in range(1, len(VARIANTS) + 1)
        for chosen in itertools.combinations(VARIANTS, count)
    )
    return [BASELINE, *sets]


def choose(
    config: GPTConfig,
    *,
    dtype: object,
    device: torch.device | str,
    batch: int,
    seq_len: int,
    training: bool = False,
    recompute: int = 1,
) -> Fusion:
    """The fastest variants for a shape, from the cache on disk or measured now.

    Args:
        config: Shape of the model.
        dtype: Of weights and activations, as `configs.dtype_name` takes it.
        device: Where the model will run.
        batch: Sequences a step.
        seq_len: Tokens a sequence.
        training: Whether forward and backward count, with the model's dropout.
        recompute: What `ffn_layernorm` keeps for backward.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return parse(BASELINE)
    key = _key(config, dtype, batch, seq_len, training, recompute)
    name = tuning.known(key, device)
    if name is None:
        ways = _ways(combinations(), config, dtype, device, batch, seq_len, training, recompute)
        # First the ops inside the blocks, one by one; then the blocks, with that settled.
        with tuning.measuring():
            for way in ways.values():
                way()
        name = tuning.choose(key, device, ways)
        del ways
        torch.cuda.empty_cache()
    return parse(name, recompute=recompute)


def warm(
    fusion: Fusion,
    config: GPTConfig,
    *,
    dtype: object,
    device: torch.device | str,
    batch: int,
    seq_len: int,
    training: bool = False,
) -> None:
    """Measure what the ops of some variants have to choose from, before memory is short.

    Arguments as for `choose`. Does nothing where there is no GPU.
    """
    device = torch.device(device)
    if device.type != "cuda" or not fusion.variants:
        return
    ways = _ways([fusion.name], config, dtype, device, batch, seq_len, training, fusion.recompute)
    with tuning.measuring():
        ways[fusion.name]()
    del ways
    torch.cuda.empty_cache()


def _key(
    config: GPTConfig, dtype: object, batch: int, seq_len: int, training: bool, recompute: int
) -> tuning.Key:
    shape = (config.d_model, config.n_heads, config.d_ff, batch, seq_len)
    name = str(torch_dtype(dtype)).removeprefix("torch.")
    mode = ("training", config.dropout, recompute) if training else ("eval",)
    return ("auto", name, *shape, *mode)


def _ways(
    names: Iterable[str],
    config: GPTConfig,
    dtype: object,
    device: torch.device,
    batch: int,
    seq_len: int,
    training: bool,
    recompute: int,
) -> dict[str, Callable[[], Any]]:
    source = random_layer(PlainParts(), config, dtype, device)
    x = torch.randn(batch, seq_len, config.d_model, device=device).to(torch_dtype(dtype))
    ways: dict[str, Callable[[], Any]] = {}
    for name in names:
        parts = parts_for(parse(name, recompute=recompute)) or PlainParts()
        layer = random_layer(parts, config, dtype, device, like=source).train(training)
        ways[name] = _step(layer, x, training)
    return ways


class Layer(nn.Module):
    """One block, run twice, and the norm behind it, so that what passes between blocks counts."""

    def __init__(self, parts: Parts, config: GPTConfig) -> None:
        super().__init__()
        self.block = parts.block(config, 0)
        self.norm = parts.norm(config)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return self.norm(self.block(self.block(x_BTD)))  # type: ignore[no-any-return]


def random_layer(
    parts: Parts,
    config: GPTConfig,
    dtype: object,
    device: torch.device,
    like: Layer | None = None,
) -> Layer:
    """A `Layer` of random weights, or of the very parameters of another one."""
    with torch.device("meta"):
        layer = Layer(parts, config).to(torch_dtype(dtype)).eval()
    if like is None:
        layer = layer.to_empty(device=device)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                elif parameter.ndim == 1:
                    parameter.zero_()
                else:
                    parameter.normal_(std=0.02)
        return layer
    share_parameters(like, layer)
    return layer


def share_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give a module the very parameters of another one of the same names."""
    modules = dict(source.named_modules())
    for name, module in target.named_modules():
        for leaf, parameter in modules[name]._parameters.items():
            if leaf in module._parameters:
                module._parameters[leaf] = parameter


def _step(layer: Layer, x: Tensor, training: bool) -> Callable[[], Any]:
    if not training:

        def forward() -> Tensor:
            with torch.no_grad():
                return layer(x)  # type: ignore[no-any-return]

        return forward
    source = x.requires_grad_(True)
    grad = torch.ones_like(x)

    def both() -> None:
        layer(source).backward(grad)
        source.grad = None
        layer.zero_grad(set_to_none=True)

    return both
