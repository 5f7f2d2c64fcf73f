# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of experts holds a pager against: the fewest loads, and those of LRU."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import torch


@pytest.fixture
def experts(script):
    return script("attach.choices")


@pytest.mark.parametrize(
    ("uses", "capacity", "fewest", "lru"),
    [
        ("", 2, 0, 0),
        ("aaaa", 1, 1, 1),
        ("abab", 0, 4, 4),
        ("abab", 1, 3, 4),  # one of them stays, the other goes by
        ("abab", 2, 2, 2),
        ("abcabcabc", 2, 5, 9),
        ("abacabad", 2, 4, 5),
    ],
)
def test_hand_made_sequences(experts, uses, capacity, fewest, lru):
    assert experts.min_misses(uses, capacity) == fewest
    assert experts.lru_misses(uses, capacity) == lru


def test_uses_before_the_start_are_not_counted(experts):
    assert experts.min_misses("abcabc", 3, start=3) == 0
    assert experts.min_misses("abcabd", 3, start=3) == 1
    assert experts.lru_misses("abcabc", 2, start=3) == 3


def fewest_loads(uses, capacity):
    """By trying everything that a store could keep after each use."""
    loads = {frozenset(): 0}
    for unit in uses:
        found = {}
        for kept, count in loads.items():
            there = sorted(kept | {unit})
            for size in range(min(capacity, len(there)) + 1):
                for chosen in map(frozenset, combinations(there, size)):
                    cost = count + (unit not in kept)
                    found[chosen] = min(cost, found.get(chosen, cost))
        loads = found
    return min(loads.values())


def test_nothing_loads_less_than_min(experts):
    draw = random.Random(1)
    for _ in range(200):
        uses = [draw.randrange(5) for _ in range(draw.randrange(1, 12))]
        capacity = draw.randrange(5)
        fewest = experts.min_misses(uses, capacity)
        assert fewest == fewest_loads(uses, capacity)
        assert fewest <= experts.lru_misses(uses, capacity)


def test_choices_are_those_of_each_pass_and_bounds_follow(experts):
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Parameter(torch.zeros(8, 4, 2))
            self.down = torch.nn.Parameter(torch.zeros(8, 2, 4))

        def forward(self, x, top_k_index, top_k_weights):
            return x

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Experts(), Experts()
            self.dense = torch.nn.Linear(4, 4)

        def forward(self, indices):
            indices = torch.tensor([indices])
            self.first(None, indices, None)
            self.second(None, top_k_index=indices, top_k_weights=None)

    model = Model()
    choices = experts.Choices(model)
    for indices in ([0, 1, 2, 3], [1, 0], [5, 1], [1, 0], [5, 1]):  # the first is the prompt's
        model(indices)
    choices.remove()
    model([7, 6])
    assert len(choices.passes) == 5
    assert choices.passes[1] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert choices.unit == 2 * 8 * 4
    assert choices.total == 2 * 8 * choices.unit
    found = choices.bounds(1000 + 4 * choices.unit, 1000, hot=5)
    assert found["routed_bytes"] == 4 * choices.unit
    assert found["even_bytes"] == 3 * choices.unit  # of 16 experts four fit
    assert found["min_bytes"] == choices.unit  # the second expert of each layer, in turn
    assert found["lru_bytes"] == 3 * choices.unit  # four of the first, two of the second
    assert found["hot_share"] == 0.5
    without = choices.bounds(900, 1000, hot=1)
    assert {without[f"{key}_bytes"] for key in ("min", "lru", "even")} == {100 + 4 * choices.unit}


def test_favourites_are_every_eighth_row_of_a_router(script):
    pytest.importorskip("transformers")
    experts = script("attach.experts")
    weight = torch.ones(16, 4)
    experts.favour("layers.0.mlp.gate_proj.weight", weight, 16)
    experts.favour("layers.0.mlp.gate.weight", weight, 8)
    assert weight.eq(1).all()
    experts.favour("layers.0.mlp.gate.weight", weight, 16)
    assert weight[[0, 8]].eq(4).all()
    assert weight.eq(1).sum() == 14 * 4
