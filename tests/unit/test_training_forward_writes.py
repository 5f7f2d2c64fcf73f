# SPDX-License-Identifier: Apache-2.0
"""Weights in training that forward itself changes in place, frozen ones too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training_tower import GRANULE, both_ways, drawn, learn

SIDE = 128  # a weight is a page
STEPS = 12  # so that some are updated in backward


class Normalised(nn.Module):
    """Keeps its weight at unit length, as EDM2 does."""

    def __init__(self, how, frozen):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIDE, SIDE), requires_grad=not frozen)
        self.how = how

    def forward(self, x):
        with torch.no_grad():
            weight = self.weight.data if self.how == "data" else self.weight
            weight.copy_(F.normalize(weight + 0.01, dim=1))
        return torch.tanh(F.linear(x, self.weight))


class Layers(nn.Module):
    def __init__(self, how="in place", frozen=False, recompute=False):
        super().__init__()
        self.layers = nn.ModuleList(Normalised(how, frozen and n % 2) for n in range(5))
        self.recompute = recompute

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x


class Renormalising(nn.Module):
    """torch's own embedding that writes its table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(SIDE, SIDE, max_norm=1.0)
        self.layers = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(4)))

    def forward(self, x):
        return self.layers(self.table(x.abs().mul(40).long().clamp(max=SIDE - 1)[:, 0]))


class Following(nn.Module):
    """A target that follows by a moving average, made within forward as momentum encoders' are."""

    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(3)))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        out = self.online(x)
        with torch.no_grad():
            for mine, theirs in zip(
                self.target.parameters(), self.online.parameters(), strict=True
            ):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
            wanted = self.target(x)
        return out - wanted


def same(make, chunks, **more):
    data = torch.randn(STEPS, 8, SIDE, generator=torch.Generator().manual_seed(1))

    def run(model, optimizer):
        losses = []
        for x in data:
            loss = model(x).square().mean()
            losses.append(learn(optimizer, loss))
        return losses

    budget = {"gpu_memory": chunks * GRANULE, "look_ahead": GRANULE}
    stats = both_ways(drawn(make, **more), run, activations="keep", **budget)
    assert stats.iteration_bytes_in > 0


@pytest.mark.parametrize("how", ["in place", "data"])
@pytest.mark.parametrize("frozen", [False, True])
def test_layers_that_normalise_their_weights(how, frozen):
    same(Layers, 7, how=how, frozen=frozen)


def test_layers_that_do_so_again_where_they_are_computed_again():
    same(Layers, 7, recompute=True)


def test_an_embedding_that_renormalises():
    same(Renormalising, 10)


def test_a_target_that_follows_within_forward():
    same(Following, 14)
