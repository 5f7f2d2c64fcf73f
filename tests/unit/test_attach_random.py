# SPDX-License-Identifier: Apache-2.0
"""Models and ways through them that are drawn at random, against the resident model."""

from __future__ import annotations

import copy
import random
from contextlib import suppress

import pytest
import torch
from attach_models import PAGE, WIDTH, page, rows
from torch import nn
from torch.nn import functional as F

from penstock.errors import OutOfMemory

PASSES = 12
WAYS = ("call", "call", "call", "read", "skip", "write", "twice", "forward")


class Broken(Exception):
    """What a model raises."""


class Leaf(nn.Module):
    """Owns a matrix, through which everything goes and comes back."""

    def __init__(self, draw):
        super().__init__()
        wide = WIDTH * draw.choice((1, 1, 1, 2))
        self.weight = nn.Parameter(torch.randn(wide, WIDTH) / 8)

    def forward(self, x):
        return torch.tanh(F.linear(F.linear(x, self.weight), self.weight.t()))


class Branch(nn.Module):
    """Goes through its parts, each in the way that `ways` has for it in this pass."""

    def __init__(self, draw, ways, depth):
        super().__init__()
        self.ways = ways
        parts = [
            Branch(draw, ways, depth - 1) if depth and draw.random() < 0.4 else Leaf(draw)
            for _ in range(draw.randint(2, 5))
        ]
        if draw.random() < 0.3:
            parts.append(parts[0])  # shared
        if draw.random() < 0.5:
            self.parts = nn.ModuleList(parts)
        else:
            for number, part in enumerate(parts):
                setattr(self, f"part{number}", part)
        self.count = len(parts)

    def part(self, number):
        return self.parts[number] if hasattr(self, "parts") else getattr(self, f"part{number}")

    def forward(self, x):
        for number in range(self.count):
            part, way = self.part(number), next(self.ways)
            if way == "skip":
                continue
            if way == "forward":
                x = x + part.forward(x)
            elif isinstance(part, Branch) or way in ("call", "twice"):
                x = x + part(x)
                if way == "twice":
                    x = x + part(x)
            elif way == "read":
                x = x + torch.tanh(x @ part.weight.sum(0).diag())
            elif way == "write":
                with torch.no_grad():
                    part.weight.mul_(1.0 + 2**-7)
                x = x + part(x)
            else:
                raise Broken
        return x


class Ways:
    """An endless supply of ways, the same for the model and its copy."""

    def __init__(self):
        self.start(0, ())

    def start(self, seed, among):
        self.draw, self.among = random.Random(seed), among

    def __next__(self):
        return self.draw.choice(self.among)

    def __deepcopy__(self, memo):
        return Ways()


def attach_within(model, draw, **more):
    """Attached within a random part of what it weighs, and room for four matrices that are read."""
    weights = sum(parameter.nbytes for parameter in model.parameters()) // 1024
    for share in (draw.uniform(0.3, 0.8), 0.9, 1.5):
        try:
            return page(model, int(weights * share) + 48 * PAGE // 1024, **more)
        except OutOfMemory:
            continue
    raise AssertionError("half as much again is not enough")


@pytest.mark.parametrize("seed", range(40))
def test_results_and_weights_are_the_resident_models(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = Branch(draw, Ways(), depth=3).eval()
    reference = copy.deepcopy(model)
    for module in reference.modules():
        if isinstance(module, Branch):
            module.ways = reference.ways
    # A pass like the last one mostly, as programs are.
    kinds = [[way for way in WAYS if draw.random() < 0.6] or ["call"] for _ in range(3)]
    kinds.append([*kinds[0], "break"])
    look_ahead = draw.choice((4 * PAGE, 64 * PAGE))
    with torch.no_grad():
        attached = attach_within(model, draw, look_ahead=look_ahead)
        for number in range(PASSES):
            kind = draw.randrange(len(kinds)) if draw.random() < 0.4 else 0
            way = draw.randrange(3) if draw.random() < 0.3 else kind
            x, results = rows(seed=number), []
            for each in (model, reference):
                each.ways.start(way * 7 + kind, kinds[kind])
                with suppress(Broken):
                    results.append(each(x))
            assert len(results) != 1
            assert not results or torch.equal(*results)
        own = attached.detach()
    for (name, one), other in zip(own.named_parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other), name
