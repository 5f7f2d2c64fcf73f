# SPDX-License-Identifier: Apache-2.0
"""A few blocks of random weights one behind the other, which stand for a whole model's.

One block by itself says little about a model. In a model the host runs ahead of the GPU, every
block has weights of its own, which no cache holds from one to the next, and what a block leaves to
the next one counts. So several run, and what is timed is both: when the GPU was done, and when
the host was.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from penstock.models.configs import GPTConfig
from penstock.models.gpt import Parts, PlainParts, torch_dtype

from .contest import Sample

Filled = TypeVar("Filled", bound=nn.Module)

MOST = 8
# What autograd keeps of one block, in units of its input: 16.3 measured with torch's layers.
KEPT = 20


class Chain(nn.Module):
    """Blocks and the norm behind them.

    Args:
        parts: What they are made of.
        config: Shape of the model.
        layers: Blocks.

    Attributes:
        count: Blocks that run, the first ones; at first all.
    """

    def __init__(self, parts: Parts, config: GPTConfig, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(parts.block(config, layer) for layer in range(layers))
        self.norm = parts.norm(config)
        self.count = layers

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        for block in itertools.islice(self.blocks, self.count):
            x_BTD = block(x_BTD)
        return self.norm(x_BTD)  # type: ignore[no-any-return]


def random_chain(
    config: GPTConfig, layers: int, *, dtype: object, device: torch.device | str
) -> Chain:
    """A chain of torch's own layers, of random weights."""
    with torch.device("meta"):
        chain = Chain(PlainParts(), config, layers).to(torch_dtype(dtype)).eval()
    return filled(chain, device)


def filled(module: Filled, device: torch.device | str) -> Filled:
    """A module without memory, on a device with random weights."""
    module = module.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.02)
            else:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
    return module


def chain_like(source: Chain, parts: Parts, config: GPTConfig) -> Chain:
    """Other layers around the very parameters of a chain."""
    with torch.device("meta"):
        chain = Chain(parts, config, len(source.blocks))
    share_parameters(source, chain)
    return chain.train(source.training)


def share_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give a module the very parameters of another one of the same names."""
    modules = dict(source.named_modules())
    for name, module in target.named_modules():
        for leaf, parameter in modules[name]._parameters.items():
            if leaf in module._parameters:
                module._parameters[leaf] = parameter


def layers_that_fit(
    config: GPTConfig, *, dtype: object, batch: int, seq_len: int, training: bool, free: int
) -> int:
    """How many blocks a chain may have: 1 to `MOST`, no more than the model, in half of `free`.

    Args:
        config: Shape of the model.
        dtype: Type of weights and activations.
        batch: Sequences per step.
        seq_len: Tokens per sequence.
        training: Whether gradients, and what backward needs, take room as well.
        free: Bytes of memory that are free.
    """
    size = torch_dtype(dtype).itemsize
    with torch.device("meta"):
        weights = sum(p.numel() for p in PlainParts().block(config, 0).parameters()) * size
    kept = KEPT * batch * seq_len * config.d_model * size
    layer = 2 * weights + kept if training else weights
    return max(1, min(MOST, config.n_layers, (free // 2 - kept) // layer))


def step_of(chain: Chain, x_BTD: Tensor) -> Callable[[], Any]:
    """A forward pass that returns its result; of a chain in training mode, backward as well."""
    if not chain.training:

        def forward() -> Tensor:
            with torch.no_grad():
                return chain(x_BTD)  # type: ignore[no-any-return]

        return forward
    source = x_BTD.detach().requires_grad_(True)
    # Ones would be nothing behind the LayerNorm, whose rows add up to what they do whatever x is;
    # and products of zeros draw less power, so that a GPU takes them faster.
    grad = torch.randn_like(x_BTD)

    def both() -> None:
        chain(source).backward(grad)
        source.grad = None
        chain.zero_grad(set_to_none=True)

    return both


def timed(step: Callable[[], Any], passes: int) -> Sample:
    """Some passes behind one that is not timed, which brings the GPU up to its pace."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    step()
    begin = time.perf_counter()
    start.record()
    for _ in range(passes):
        step()
    end.record()
    host_ms = (time.perf_counter() - begin) * 1e3
    end.synchronize()
    return Sample(start.elapsed_time(end) / passes, host_ms / passes)
