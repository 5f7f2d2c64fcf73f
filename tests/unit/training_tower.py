# SPDX-License-Identifier: Apache-2.0
"""A small model, the loop that trains it, and how it is attached: for the tests of training."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from penstock import attach_training
from penstock.units import KIB, MIB

GRANULE = 64 * KIB
TENSORS = 20 * GRANULE  # of the budget, for activations, gradients and what operators make
WIDTH = 96


def page(model, optimizer, *, chunks=26, seed=1, **more):
    """Attach with a budget of `chunks` chunks of 64 KiB, on an emulated GPU that dawdles."""
    dawdling = {"granularity": GRANULE, "capacity": 256 * MIB, "seed": seed, "max_delay_us": 100}
    emulated = more.pop("emulated", dawdling)
    more = {
        "gpu_memory": chunks * GRANULE + TENSORS,
        "chunk_size": GRANULE,
        "look_ahead": 2 * GRANULE,
        **more,
    }
    return attach_training(model, optimizer, device="emulated", emulated=emulated, **more)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.relu(self.up(self.norm(x)), inplace=True))


class Tower(nn.Module):
    """Layers between an embedding and a head that share their weight; 1.4 MiB of weights."""

    def __init__(self, layers=5, recompute=None, tokens=300):
        super().__init__()
        self.recompute = recompute
        self.table = nn.Embedding(tokens, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, tokens, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        if self.recompute == "reentrant":
            x.requires_grad_()
        for layer in self.layers:
            if self.recompute is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.recompute == "reentrant")
        return self.head(x)


def batches(count=5, size=4):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 300, (size, 12), generator=generator) for _ in range(count)]


def loss_of(model, ids):
    logits = model(ids)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def learn(optimizer, loss):
    """Backward and an update; the loss."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def train(model, optimizer, data, *, autocast=False, scheduler=None):
    """The loop that users write."""
    losses = []
    for ids in data:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, ids)
        losses.append(learn(optimizer, loss))
        if scheduler is not None:
            scheduler.step()
    return losses


def drawn(make=Tower, **more):
    torch.manual_seed(0)
    return make(**more)


def pair(make=Tower, **more):
    model = drawn(make, **more)
    return model, copy.deepcopy(model)


def adamw(model, **more):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, **more)


def same_weights(a, b):
    """Buffers too."""
    tensors = ([*model.parameters(), *model.buffers()] for model in (a, b))
    return all(torch.equal(x, y) for x, y in zip(*tensors, strict=True))


def both_ways(plain, run, optimizer=adamw, *, attach=page, meanwhile=lambda attached: None, **more):
    """Run a model, and a copy of it attached, to the same end: figures, weights and state.

    `run` takes a model and its optimizer; `meanwhile` is called with the attachment afterwards.
    Returns what the attachment told of itself by then.
    """
    paged = copy.deepcopy(plain)
    first, second = optimizer(plain), optimizer(paged)
    want = run(plain, first)
    with attach(paged, second, **more) as attached:
        assert run(paged, second) == want
        assert same_state(first, second)
        meanwhile(attached)
        stats = attached.stats()
    assert same_weights(plain, paged)
    assert same_state(first, second)
    return stats


def same_state(a, b):
    """Of two optimizers over equal parameters."""
    left, right = a.state_dict()["state"], b.state_dict()["state"]
    assert left.keys() == right.keys()
    for number, values in left.items():
        assert values.keys() == right[number].keys()
        for key, value in values.items():
            other = right[number][key]
            if not (torch.equal(value, other) if torch.is_tensor(value) else value == other):
                return False
    return True
