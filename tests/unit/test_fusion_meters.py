# SPDX-License-Identifier: Apache-2.0
"""The meters of the fusion benchmark: what they count, and that nothing outlives the counting."""

from __future__ import annotations

import weakref

import pytest
import torch

from penstock.models.configs import get_config
from penstock.models.gpt import GPT


@pytest.fixture
def meters(script):
    return script("fusion.models")


def test_what_was_counted_does_not_live_on(meters, monkeypatch):
    """Else it stands in the peaks of every row after it."""
    handed_out = []
    original = meters.Kept.pack

    def watched(meter, tensor):
        packed = original(meter, tensor)
        if not isinstance(packed, torch.nn.Parameter):
            handed_out.append(weakref.ref(packed))
        return packed

    monkeypatch.setattr(meters.Kept, "pack", watched)
    monkeypatch.setattr(meters, "SEQ_LEN", 16)
    config = get_config("tiny", n_layers=3, dropout=0.0)
    kept = meters.kept_a_layer(GPT(config), 2)
    assert len(handed_out) > 20
    assert [packed() for packed in handed_out] == [None] * len(handed_out)
    # At least the inputs of four products: d, d, d and d_ff wide.
    assert kept >= 2 * 16 * (3 * config.d_model + config.d_ff) * 4


def test_steps_in_turn_each_have_their_samples(meters, monkeypatch):
    taken = []

    def time_steps(step, *, warmups, steps):
        taken.append((step(), steps))
        return [float(step())] * steps

    monkeypatch.setattr(meters, "time_steps", time_steps)
    found = meters.timed_in_turn([lambda: 100, lambda: 400])
    assert [row["median_ms"] for row in found] == [100.0, 400.0]
    assert [len(row["samples_ms"]) for row in found] == [12, 6]
    rounds = [name for name, steps in taken[2:]]
    assert rounds == [100, 400] * 3
