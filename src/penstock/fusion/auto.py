# SPDX-License-Identifier: Apache-2.0
"""``--fusion auto``: the variants that were measured fastest for this GPU, dtype and shape.

A few blocks are made of random weights (`chain`), variants run on them in turns (`contest`), and
the fastest are kept on disk (`tuning`). Costs up to half of the free memory and a few seconds the
first time; nothing afterwards. Where there is no GPU it is the baseline: times of a CPU say
nothing about one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from penstock.models.configs import GPTConfig
from penstock.models.gpt import PlainParts, torch_dtype

from . import tuning
from .captured import record
from .chain import Chain, chain_like, layers_that_fit, random_chain, step_of, timed
from .contest import Outcome, Sample, decide
from .parts import parts_for
from .variants import BASELINE, Fusion, parse

log = logging.getLogger("penstock.fusion")

# A sample is about as long, in whole passes through the chain.
SAMPLE_MS = 25.0
# With two passes a sample, nine candidates and five rounds, 3 s: long blocks make shorter chains.
LONGEST_MS = 33.0
FEWEST_LAYERS = 4
# Blocks that are given to the GPU at once. A host that is some thousand launches ahead is made to
# wait, and its time would be the GPU's; a block is about 15, with backward 55.
MOST_BLOCKS = {False: 48, True: 16}
# Blocks that run for a result: enough that what passes between two counts, few enough that
# roundings stay what they are in one.
CHECKED_LAYERS = 2


@dataclass(frozen=True)
class Step:
    """What is to be fast.

    Attributes:
        config: Shape of the model.
        dtype: Of weights and activations, as `configs.dtype_name` takes it.
        device: Where the model will run.
        batch: Sequences per step.
        seq_len: Tokens per sequence.
        training: Whether forward and backward count, with the model's dropout; backward in
            autograd's threads, unless the caller has `torch.autograd.set_multithreading_enabled`
            say otherwise.
        recompute: What `ffn_layernorm` keeps for backward.
        captured: Whether the model will run as a CUDA graph, so that the host does not count.
    """

    config: GPTConfig
    dtype: object
    device: torch.device | str
    batch: int
    seq_len: int
    training: bool = False
    recompute: int = 1
    captured: bool = False

    @property
    def key(self) -> tuning.Key:
        """What a choice holds for, beside the device."""
        config = self.config
        shape = (config.d_model, config.n_heads, config.d_ff, self.batch, self.seq_len)
        name = str(torch_dtype(self.dtype)).removeprefix("torch.")
        captured = ("captured",) if self.captured else ()
        if not self.training:
            return ("auto", name, *shape, "eval", *captured)
        # Where backward runs decides what an op of Python costs the host.
        threads = () if torch.autograd.is_multithreading_enabled() else ("one thread",)
        how = (config.dropout, self.recompute, *threads)
        return ("auto", name, *shape, "training", *how, *captured)


def choose(
    config: GPTConfig,
    *,
    dtype: object,
    device: torch.device | str,
    batch: int,
    seq_len: int,
    training: bool = False,
    recompute: int = 1,
    captured: bool = False,
) -> Fusion:
    """The fastest variants for a shape, from the cache on disk or measured now.

    Arguments are the fields of a `Step`.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return parse(BASELINE)
    step = Step(config, dtype, device, batch, seq_len, training, recompute, captured)
    key = step.key
    name = tuning.known(key, device)
    if name is None:
        name = measure(step).name
        tuning.remember(key, device, name)
    return parse(name, recompute=recompute)


def measure(step: Step) -> Outcome:
    """Measure the variants for a shape on a GPU, known or not; the choice is not kept.

    What is measured for the ops inside is kept.
    """
    with torch.cuda.device(step.device):
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
        layers = layers_that_fit(
            step.config,
            dtype=step.dtype,
            batch=step.batch,
            seq_len=step.seq_len,
            training=step.training,
            free=free,
        )
        stage = Stage(step, layers)
        outcome = decide(stage.run, stage.sound)
        log.info("fusion auto, %d layers: %s: %s", stage.layers, outcome.name, outcome.figures())
        del stage
        torch.cuda.empty_cache()
    return outcome


def warm(fusion: Fusion, step: Step) -> None:
    """Measure what the ops of some variants have to choose from, before memory is short.

    Does nothing where there is no GPU.
    """
    if torch.device(step.device).type != "cuda" or not fusion.variants:
        return
    stage = Stage(replace(step, recompute=fusion.recompute), layers=1)
    with tuning.measuring():
        stage.step(fusion.name)()
    del stage
    torch.cuda.empty_cache()


class Stage:
    """Chains of all variants around the same parameters, for `contest.decide`.

    Args:
        step: What they are to be fast at.
        layers: Blocks of a chain, at most.

    Attributes:
        chains: By the name of their variants, as far as they have been asked for.
        layers: Blocks that are timed.
        passes: Passes through the chain in one sample.
    """

    def __init__(self, step: Step, layers: int) -> None:
        config, device = step.config, step.device
        self._config, self._recompute = config, step.recompute
        source = random_chain(config, layers, dtype=step.dtype, device=device)
        self._source = source.train(step.training)
        shape = (step.batch, step.seq_len, config.d_model)
        self._x_BTD = torch.randn(shape, device=device).to(torch_dtype(step.dtype))
        self.chains: dict[str, Chain] = {}
        self._steps: dict[str, Callable[[], Any]] = {}
        self._replays: dict[str, Callable[[], Any]] = {}
        # Nobody wants what the chains give, so their graphs may write it to the same place.
        self._pool = torch.cuda.graph_pool_handle() if step.captured else None
        self.layers, self.passes = layers, 0

    def step(self, name: str) -> Callable[[], Any]:
        """A pass through the chain of some variants."""
        if name not in self._steps:
            parts = parts_for(parse(name, recompute=self._recompute)) or PlainParts()
            chain = chain_like(self._source, parts, self._config)
            self.chains[name], self._steps[name] = chain, step_of(chain, self._x_BTD)
        return self._steps[name]

    def sound(self, names: list[str]) -> list[str]:
        """Let the ops inside be measured, one by one; then those that run and are right, warm."""
        ways = {name: self.step(name) for name in names}
        self._run_layers(min(CHECKED_LAYERS, self.layers))
        with tuning.measuring():
            good = tuning.sound(("auto",), ways)
        self._run_layers(self.layers)
        for name in good:
            ways[name]()
        if not self.passes:
            self._size(good[0])
        return good

    def run(self, name: str) -> Sample:
        """A sample of some variants, in ms a layer."""
        sample = timed(self._timed_step(name), self.passes)
        return Sample(sample.elapsed_ms / self.layers, sample.host_ms / self.layers)

    def _timed_step(self, name: str) -> Callable[[], Any]:
        """A pass, or a replay of it; recorded here, when it is known how many layers it has."""
        if self._pool is None:
            return self.step(name)
        if name not in self._replays:
            graph, _ = record(self.step(name), pool=self._pool)
            self._replays[name] = graph.replay
        return self._replays[name]

    def _size(self, name: str) -> None:
        """Choose how many layers and passes a sample is, by the time of one pass."""
        layer_ms = max(1e-3, timed(self.step(name), 1).elapsed_ms / self.layers)
        fewest = min(FEWEST_LAYERS, self.layers)
        self.layers = min(self.layers, max(fewest, int(LONGEST_MS / layer_ms)))
        most = MOST_BLOCKS[self._source.training] // self.layers - 1  # one is not timed
        self.passes = max(1, min(most, round(SAMPLE_MS / (layer_ms * self.layers))))
        self._run_layers(self.layers)

    def _run_layers(self, count: int) -> None:
        for chain in self.chains.values():
            chain.count = count
