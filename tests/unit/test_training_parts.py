# SPDX-License-Identifier: Apache-2.0
"""Loops that call parts of the attached model by themselves, and never its forward."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from training_both import DATA, STEPS
from training_tower import Tower, adamw, both_ways, drawn, learn, page, train

from penstock.errors import UsageError


class Parts(Tower):
    """As a flow or an autoencoder: its ways in have other names."""

    def __init__(self, layers=2):
        super().__init__(layers)

    def score(self, ids):
        return super().forward(ids)

    def forward(self, ids):
        raise AssertionError("nobody calls it")


def loss_of(model, ids):
    logits = model.score(ids)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def plainly(model, optimizer):
    return [learn(optimizer, loss_of(model, ids)) for ids in DATA[:STEPS]]


@pytest.mark.parametrize("chunks", [4, 40])
def test_weights_get_the_room_that_is_left(chunks):
    """As much as where the same layers are called through forward."""
    parts = both_ways(drawn(Parts), plainly, chunks=chunks)
    whole = both_ways(
        drawn(Tower, layers=2), lambda model, by: train(model, by, DATA[:STEPS]), chunks=chunks
    )
    assert parts.updates_in_backward
    assert whole.updates_in_backward
    assert (parts.iteration_page_loads > 0) == (chunks == 4)
    assert parts.iteration_page_loads <= whole.iteration_page_loads


def test_a_part_that_runs_between_backward_and_the_step():
    def looked_at(model, optimizer):
        seen = []
        for ids in DATA[:STEPS]:
            loss_of(model, ids).backward()
            with torch.no_grad():
                seen.append(loss_of(model, ids).item())
            optimizer.step()
            optimizer.zero_grad()
        return seen

    assert not both_ways(drawn(Parts), looked_at, chunks=4).updates_in_backward
    model = drawn(Parts)
    optimizer = adamw(model)
    with page(model, optimizer, chunks=4):
        plainly(model, optimizer)
        with pytest.raises(UsageError, match="backward has updated") as refused:
            looked_at(model, optimizer)
        assert "step_in_backward=False" in refused.value.remedy
        optimizer.step()


def test_parts_unfrozen_later_are_trained():
    def run(model, optimizer):
        losses = []
        for n, ids in enumerate(DATA[:STEPS]):
            model.layers[0].requires_grad_(n >= 3)
            losses.append(learn(optimizer, loss_of(model, ids)))
        return losses

    assert both_ways(drawn(Parts), run, chunks=4).updates_in_backward
