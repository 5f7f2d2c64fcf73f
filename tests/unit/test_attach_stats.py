# SPDX-License-Identifier: Apache-2.0
"""What stats() of an attachment is: a value with documented fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from attach_models import PAGE, page, rows, stack

import penstock
from penstock.paging.managed import attach_managed
from penstock.paging.managed.stats import ManagedStats
from penstock.paging.stats import Stats
from penstock.paging.training import attach_training
from penstock.paging.training.stats import TrainingStats
from penstock.units import KIB, MIB

WHERE = {"device": "emulated", "emulated": {"granularity": PAGE, "capacity": 64 * MIB}}


def attached(kind):
    model = stack()
    if kind is Stats:
        return page(model)
    if kind is ManagedStats:
        return attach_managed(model, gpu_memory=80 * KIB, **WHERE)
    optimizer = torch.optim.SGD(model.parameters())
    return attach_training(model, optimizer, gpu_memory=300 * KIB, **WHERE)


def documented(kind):
    """The attributes that docstrings of the class and its bases tell of."""
    texts = [inspect.getdoc(base) for base in kind.__mro__ if dataclasses.is_dataclass(base)]
    return {name for text in texts for name in re.findall(r"^    (\w+): ", text, re.MULTILINE)}


@pytest.mark.parametrize("kind", [Stats, ManagedStats, TrainingStats])
def test_statistics_are_a_value_whose_fields_are_documented(kind):
    with attached(kind) as held:
        with torch.no_grad():
            held.model(rows())
        before = held.stats()
        assert type(before) is kind
        assert (before.passes, before.weight_bytes) == (1, held.weight_bytes)
        assert type(penstock.stats()) is kind
        with torch.no_grad():
            held.model(rows())
        assert (before.passes, held.stats().passes) == (1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.passes = 3
    with pytest.raises(TypeError):
        before["passes"]
    assert documented(kind) == {field.name for field in dataclasses.fields(kind)}


def test_threads_may_ask_at_once_how_fast_the_link_is():
    with page(stack()) as attached, ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: attached.link(), range(4)))) == 1
