# SPDX-License-Identifier: Apache-2.0
"""attach_training() over many steps of random shapes: the resident losses, and nothing grows.

Weights, state and activations leave in every step, those of checkpointed regions too.
"""

from __future__ import annotations

import copy
import gc
import os
import types

import pytest
import torch
from deep_layers import WIDTH, Layer, attach, dead_references
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_tower import Tower, batches, learn, loss_of, page

from penstock.paging.training import hooks
from penstock.paging.training.loop import PLAIN_STEPS
from penstock.units import KIB, MIB

pytestmark = pytest.mark.usefixtures("small_blocks")

BUDGET = 1536 * KIB
MOST_ROWS = 256
PAGE = os.sysconf("SC_PAGESIZE")


class Model(nn.Module):
    """Eight layers, of which every second is computed again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(8))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if number % 2 else layer(x)
        return x


def batch(step):
    random = torch.Generator().manual_seed(step)
    rows = int(torch.randint(1, MOST_ROWS + 1, (), generator=random))
    return torch.randn(rows, WIDTH, generator=random)


def train(model, optimizer, steps):
    losses = []
    for step in steps:
        loss = model(batch(step)).square().mean()
        losses.append(learn(optimizer, loss))
    return losses


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def held(attached):
    """What may grow: by name."""
    attached.activations.saving.settle()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * PAGE
    driver = attached.device.live()
    # How many pages there are now follows from the last steps' tensors; each is mapped twice.
    chunks = driver.pop("chunks")
    assert chunks <= BUDGET // (64 * KIB)
    driver["mappings"] -= 2 * chunks
    return resident, {
        **driver,
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "host memory for activations": attached.stats().activation_host_bytes,
        "activations": attached.activations.saving.saved,
        "tensors on the device": attached.manager.torch.live(),
    }


@pytest.mark.parametrize(
    "steps", [80, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_steps_of_random_shapes(steps):
    torch.manual_seed(0)
    plain = Model()
    paged = copy.deepcopy(plain)
    first, second = adamw(plain), adamw(paged)
    with attach(paged, second, BUDGET) as attached:
        moved = 0
        quarters, seen = steps // 4, []
        for begin in range(0, steps, quarters):
            want = train(plain, first, range(begin, begin + quarters))
            assert train(paged, second, range(begin, begin + quarters)) == want
            moved += attached.stats().activation_bytes_in
            seen.append((dead_references(), *held(attached)))
        assert attached.stats().bytes_out > 0
        assert moved > 0
    (few, _, early), *_, (_, before, _), (references, after, late) = seen
    assert late == early
    assert references < few + 100  # those of one step
    assert after - before < 4 * MIB


def functions():
    """How many there are of hooks on modules and nodes."""
    found = [each for each in gc.get_objects() if type(each) is types.FunctionType]
    return sum(each.__module__ == hooks.__name__ for each in found)


def test_a_forward_makes_no_function_of_each_module():
    """They would live to its backward, and bring Python's full collections on."""
    model = Tower(layers=8)
    optimizer = adamw(model)
    data = batches(PLAIN_STEPS + 3)
    with page(model, optimizer, chunks=60):
        for ids in data[:-1]:
            learn(optimizer, loss_of(model, ids))
        gc.disable()
        try:
            before = functions()
            losses = [loss_of(model, data[-1]) for _ in range(4)]
            made = functions() - before
        finally:
            gc.enable()
        sum(losses).backward()
    assert made == 0


def test_layers_frozen_by_turns_leave_the_plan_as_it_is():
    model = Tower()
    optimizer = adamw(model)
    data = batches(24)
    mismatches = []
    with page(model, optimizer, chunks=8) as attached:
        for n, ids in enumerate(data):
            for number, layer in enumerate(model.layers):
                layer.requires_grad_((number + n) % 2 == 0)
            learn(optimizer, loss_of(model, ids))
            mismatches.append(attached.stats().mismatches)
        assert attached.stats().iteration_page_loads > 0
    assert mismatches[-1] == mismatches[-7]
