# SPDX-License-Identifier: Apache-2.0
"""Models, rows and meters of the fusion benchmark, and the run of fusion_suite.py.

One set of random weights a model, made on the card; every variant is built around the very same
parameters. A row is one variant in one piece of work, with times, kernels per layer, bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from kit.measure import device_events, release, spread, time_steps
from kit.record import Record
from torch import Tensor, nn

from penstock.fusion import parse, tuning
from penstock.fusion.chain import filled, share_parameters
from penstock.fusion.parts import parts_for
from penstock.models.configs import GPTConfig, get_config
from penstock.models.gpt import GPT

# What the models are called in the tables.
MODELS = {"1.5B": "gpt2_xl", "6.7B": "gpt3_6.7b", "13B": "gpt3_13b_5120"}
DTYPE = torch.bfloat16
SEQ_LEN = 1024
EVERYTHING = "dropout_layernorm,attention_layernorm,attention_projection,ffn_layernorm"
SINGLE = ("dropout_layernorm", "attention_layernorm", "attention_projection", "ffn_layernorm")
# A row takes about this long, between the bounds.
ROW_MS = 1200.0
FEWEST, MOST = 6, 30
ROUNDS = 3
Row = dict[str, Any]


def config_of(model: str, **changes: Any) -> GPTConfig:
    return get_config(MODELS[model], **changes)


def random_model(config: GPTConfig) -> GPT:
    """A plain model of random weights on the card."""
    with torch.device("meta"):
        model = GPT(config).to(DTYPE)
    return filled(model, "cuda").eval()


def variant_of(plain: GPT, name: str, *, recompute: int = 1, compiled: bool = False) -> GPT:
    """The same parameters in other layers."""
    fusion = parse(name, recompute=recompute)
    with torch.device("meta"):
        model = GPT(plain.config, parts_for(fusion)).to(DTYPE)
    share_parameters(plain, model)
    if compiled:
        for block in model.blocks:
            block.compile(dynamic=False)
    return model.train(plain.training)


def tokens_for(config: GPTConfig, batch: int, count: int = SEQ_LEN) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, config.vocab_size, (batch, count), generator=generator).cuda()


def timed_in_turn(
    steps: list[Callable[[], Any]], *, row_ms: float = ROW_MS
) -> list[dict[str, Any]]:
    """Milliseconds of steps, each waited for: a few of each of several in every round.

    A host has slow spells of seconds: one after the other, a baseline of 13.1 ms was 17.7 at the
    end of its table. In turns they fall on all.
    """
    times: list[list[float]] = [[] for _ in steps]
    counts = []
    for step in steps:
        once = time_steps(step, warmups=2, steps=1)[0]
        counts.append(round(min(MOST, max(FEWEST, row_ms / once)) / ROUNDS))
    for _ in range(ROUNDS):
        for taken, step, count in zip(times, steps, counts, strict=True):
            taken += time_steps(step, warmups=1, steps=max(1, count))
    return [spread(taken) for taken in times]


def peak_of(step: Callable[[], Any]) -> int:
    """The most that PyTorch had allocated during a step, the first of its kind aside."""
    step()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def kernels_a_layer(model: GPT, batch: int, *, training: bool) -> float:
    """Of two blocks in the middle, halved: what passes between blocks is counted once."""
    blocks = list(model.blocks)[:2]
    shape = (batch, SEQ_LEN, model.config.d_model)
    x = torch.randn(shape, device="cuda").to(DTYPE).requires_grad_(training)

    def step() -> None:
        with torch.set_grad_enabled(training):
            y = blocks[1](blocks[0](x))
            y = y.add() if isinstance(y, tuple) else y
        if training:
            y.backward(x.detach())

    step()
    model.zero_grad(set_to_none=True)  # a step writes gradients, it does not add to others
    count = len(device_events(step))
    model.zero_grad(set_to_none=True)
    # The sum behind the last block belongs to the next block or norm.
    return count / 2


class Kept:
    """Bytes that autograd keeps of a forward pass beside parameters, each storage once."""

    def __init__(self, model: nn.Module) -> None:
        self._skip = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._device = next(model.parameters()).device
        self._seen: dict[int, int] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if tensor.device == self._device and storage.data_ptr() not in self._skip:
            self._seen[storage.data_ptr()] = storage.nbytes()
        # Not the tensor itself: it holds the graph, which holds what is returned here, for ever.
        return tensor.detach()

    @property
    def nbytes(self) -> int:
        return sum(self._seen.values())


def kept_a_layer(model: GPT, batch: int) -> int:
    """Bytes kept for backward by one block in the middle: those of three less those of two."""
    weight = next(model.parameters())
    shape = (batch, SEQ_LEN, model.config.d_model)
    kept = []
    for count in (2, 3):
        x = torch.randn(shape, device=weight.device).to(weight.dtype).requires_grad_(True)
        meter = Kept(model)
        with torch.autograd.graph.saved_tensors_hooks(meter.pack, lambda tensor: tensor):
            stream: Any = x
            for block in list(model.blocks)[:count]:
                stream = block(stream)
        kept.append(meter.nbytes)
        del stream, x
    return kept[1] - kept[0]


def forward_step(model: GPT, tokens: Tensor, *, last: bool = False) -> Callable[[], Tensor]:
    @torch.no_grad()
    def step() -> Tensor:
        return model(tokens, last=last)

    return step


def training_step(model: GPT, tokens: Tensor) -> Callable[[], None]:
    """Forward and backward, the latter in the calling thread."""
    targets = tokens.roll(-1, 1).reshape(-1)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets)
        del logits
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()

    return step


def forward_peak(model: GPT, tokens: Tensor) -> int:
    """The most allocated up to the end of a training step's forward: all that backward needs."""
    model.zero_grad(set_to_none=True)
    targets = tokens.roll(-1, 1).reshape(-1)

    def step() -> None:
        logits = model(tokens)
        F.cross_entropy(logits.view(-1, logits.shape[-1]), targets)

    return peak_of(step)


@dataclass
class Member:
    """A row to be timed beside others: what is timed, and what is found out afterwards."""

    label: dict[str, Any]
    step: Callable[[], Any]
    rest: Callable[[], dict[str, Any]]


class Suite(Record):
    """The run: rows of several kinds, none begun that would not end in time."""

    def __init__(self, args: argparse.Namespace) -> None:
        what = {"title": "Fused layers", "dtype": str(DTYPE), "seq_len": SEQ_LEN}
        lists = {"left_out": [], "failed": [], "seconds": {}}
        super().__init__(args.output, args.limit, **what, **lists)

    def write(self) -> None:
        self.document["choices"] = {
            key: name for found in tuning._known.values() for key, name in sorted(found.items())
        }
        super().write()

    def row(self, work: str, seconds: float, measure: Callable[[], Row], **what: Any) -> None:
        """One row, unless it would not end in time."""
        label = {"work": work, **what}
        if self.left < seconds:
            self.document["left_out"].append(label)
            return
        with self.trying(label):
            self.add({**label, **measure()})

    def table(self, seconds: float, members: list[Member], *, row_ms: float = ROW_MS) -> None:
        """Rows timed in turns, unless `seconds` for each would be too many."""
        if self.left < seconds * len(members):
            self.document["left_out"] += [member.label for member in members]
            return
        ready: list[Member] = []
        for member in members:
            with self.trying(member.label):
                member.step()
                ready.append(member)
        timed = timed_in_turn([member.step for member in ready], row_ms=row_ms)
        for member, times in zip(ready, timed, strict=True):
            with self.trying(member.label):
                self.add({**member.label, **times, **member.rest()})

    @contextlib.contextmanager
    def trying(self, label: Row) -> Iterator[None]:
        failed = len(self.document["failed"])
        with super().trying(label):
            yield
        if len(self.document["failed"]) > failed:
            release()
