# SPDX-License-Identifier: Apache-2.0
"""Many equal layers, whose activations outweigh their weights, and loops over them both ways."""

from __future__ import annotations

import copy
import gc
import weakref

import torch
from torch import nn
from training_tower import both_ways, drawn, learn

import penstock
from penstock import attach_training
from penstock.units import KIB, MIB

top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
WIDTH, ROWS = 64, 256  # an activation has 64 KiB
BUDGET = 1536 * KIB


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Deep(nn.Module):
    """16 layers, each of which saves some 400 KiB; `between` is run in the middle."""

    def __init__(self, between=lambda x: x, around=lambda layer, x: layer(x)):
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(16))
        self.between, self.around = between, around

    def forward(self, x):
        x = self.enter(x)
        for number, layer in enumerate(self.layers):
            if number == 8:
                x = self.between(x)
            x = self.around(layer, x)
        return x


def inputs(count=4, grad=False):
    random = torch.Generator().manual_seed(3)
    return [torch.randn(ROWS, WIDTH, generator=random).requires_grad_(grad) for _ in range(count)]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def dead_references():
    """How many weak references there are to what has gone: they are left in tables."""
    gc.collect()
    return sum(type(x) is weakref.ref and x() is None for x in gc.get_objects())


def attach(model, optimizer, budget=BUDGET, **more):
    emulated = {"granularity": 64 * KIB, "capacity": 256 * MIB, "seed": 1, "max_delay_us": 20}
    sizes = {"chunk_size": 64 * KIB, "look_ahead": 64 * KIB}
    return attach_training(
        model, optimizer, gpu_memory=budget, device="emulated", emulated=emulated, **sizes, **more
    )


def pair(**more):
    model = drawn(Deep, **more)
    return model, copy.deepcopy(model)


def plain_loop(model, optimizer, x):
    return [learn(optimizer, model(x).square().mean())]


def same(loop=plain_loop, budget=BUDGET, moves=True, grad=False, **more):
    """Run the loop both ways: equal figures and weights, and something has moved."""
    moved = []

    def run(model, optimizer):
        got = []
        for x in inputs(grad=grad):
            got.append(loop(model, optimizer, x))
            moved.extend(each.stats().activation_bytes_in for each in penstock.attachments())
        return got

    both_ways(drawn(Deep, **more), run, sgd, attach=attach, meanwhile=nothing_left, budget=budget)
    assert (max(moved) > 0) == moves


def nothing_left(attached):
    """Of what forward saved, nor of the hooks that saved it."""
    gc.collect()
    attached.activations.saving.settle()
    assert attached.activations.saving.saved == 0
    assert top_hooks(False) is None
