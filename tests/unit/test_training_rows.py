# SPDX-License-Identifier: Apache-2.0
"""attach_training(): a large embedding is updated rows by rows, with the same result."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from training_tower import batches, both_ways, drawn, page, train

from penstock.paging.training import rows

LARGE_TABLE = 3000  # rows: 1.1 of 2.1 MiB of weights

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adamax": torch.optim.Adamax,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("in_backward", [True, False])
def test_rows_are_updated_as_the_whole_is(name, in_backward):
    def optimizer(model):
        return OPTIMIZERS[name](model.parameters())

    plain, run = drawn(tokens=LARGE_TABLE), partial(train, data=batches(5))
    both_ways(plain, run, optimizer, chunks=150, step_in_backward=in_backward)


def test_cut_updates_move_less(monkeypatch):
    moved = []
    for large in (rows.LARGE, 1.0):
        monkeypatch.setattr(rows, "LARGE", large)
        model = drawn(tokens=LARGE_TABLE)
        optimizer = torch.optim.AdamW(model.parameters())
        with page(model, optimizer, chunks=110, step_in_backward=True) as attached:
            train(model, optimizer, batches(6))
            settled = attached.stats().mismatches
            train(model, optimizer, batches(2))
            assert attached.stats().mismatches == settled
            moved.append(attached.stats().iteration_bytes_in)
    assert moved[0] < moved[1]


def test_an_optimizer_that_looks_at_a_whole_parameter_gets_it_whole():
    def adafactor(model):
        return torch.optim.Adafactor(model.parameters(), lr=1e-2)

    plain, run = drawn(tokens=LARGE_TABLE), partial(train, data=batches(4))
    both_ways(plain, run, adafactor, chunks=150)
