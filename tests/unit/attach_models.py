# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of attach(), and an emulated GPU that holds a part of them."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from penstock.paging import attach
from penstock.units import KIB, MIB

WIDTH = 64  # a Linear is 16.25 KiB
PAGE = 4 * KIB


def page(model, kib=80, **more):
    """Attach within so many KiB; a stack of eight layers has 130."""
    more.setdefault("emulated", {"granularity": PAGE, "capacity": 64 * MIB})
    return attach(model, device="emulated", gpu_memory=kib * KIB, **more)


def rows(count=4, seed=0):
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def stack(layers=8):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)]).eval()


def with_reference(model):
    """The model, and a resident copy to compare with."""
    return model.eval(), copy.deepcopy(model).eval()


def same_passes(model, reference, count=4, **inputs):
    """Whether so many passes, each with other inputs, give the resident model's results."""
    return all(
        torch.equal(model(rows(seed=n), **inputs), reference(rows(seed=n), **inputs))
        for n in range(count)
    )


class Borrower(nn.Module):
    """Reads one of its layers' weights before it calls them; which one, its caller says."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(stack())

    def forward(self, x, which=0, borrow=True):
        if borrow:
            x = F.linear(x, self.layers[which].weight)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Experts(nn.Module):
    """Applies the experts that the data chooses as functions of their weights."""

    def __init__(self, count=8):
        super().__init__()
        self.gate = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(stack(count))

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        y = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            expert = self.experts[number]
            y[chosen == number] = F.linear(x[chosen == number], expert.weight, expert.bias)
        return y


class Mixer(nn.Module):
    """Calls a module in one mode and reads its weight in the other, as HF's Mamba does."""

    def __init__(self):
        super().__init__()
        self.before, self.conv, self.after = stack(3)

    def forward(self, x, decode=False):
        x = torch.tanh(self.before(x))
        x = F.linear(x, self.conv.weight, self.conv.bias) if decode else self.conv(x)
        return torch.tanh(self.after(x))


class Mixers(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixers = nn.ModuleList(Mixer() for _ in range(3))

    def forward(self, x, decode=False):
        for mixer in self.mixers:
            x = mixer(x, decode)
        return x
