# SPDX-License-Identifier: Apache-2.0
"""What is saved and loaded in the middle of a step, and what is pickled between steps."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from training_both import DATA, STEPS, backward, make, plain_step, same
from training_tower import GRANULE, adamw, page, pair, same_weights

from penstock.errors import OutOfMemory, UsageError
from penstock.paging.training.loop import PLAIN_STEPS
from penstock.units import KIB

LATE = PLAIN_STEPS + 2


def save_weights(model, optimizer):
    return copy.deepcopy(model.state_dict())


def save_state(model, optimizer):
    return copy.deepcopy(optimizer.state_dict())


def load_state(model, optimizer):
    saved = copy.deepcopy(optimizer.state_dict())
    for values in saved["state"].values():
        values["exp_avg"].mul_(0.5)
    optimizer.load_state_dict(saved)


def load_weights(model, optimizer):
    model.load_state_dict({name: x / 2 for name, x in SAVED.items()})


SAVED = make().state_dict()
ACTS = [save_weights, save_state, load_state, load_weights]


def loop_with(act, seen, when):
    def loop(model, optimizer, n):
        loss = backward(model, n)
        if when(n):
            seen.append(act(model, optimizer))
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return loop


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return all(map(equal, a, b))
    return torch.equal(a, b) if torch.is_tensor(a) else a == b


@pytest.mark.parametrize("act", ACTS)
def test_what_is_saved_or_loaded_before_a_step_is_of_before_it(act):
    seen = []
    same(loop_with(act, seen, lambda n: True))
    assert equal(seen[:STEPS], seen[STEPS:])


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("first", [0, LATE])
def test_once_backward_has_updated_it_comes_too_late(act, first):
    _, model = pair(make)
    optimizer = adamw(model)
    loop = loop_with(act, [], lambda n: n == first + 1)
    with page(model, optimizer, step_in_backward=None if first else True):
        for n in range(first + 1):
            loop(model, optimizer, n)
        with pytest.raises(UsageError, match=r"backward has updated \S+ already.*=False"):
            loop(model, optimizer, first + 1)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [lambda x: pickle.loads(pickle.dumps(x)), saved])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_pickled_optimizers_and_weights_are_ordinary_ones(way, steps):
    plain, paged = pair(make)
    first, second = adamw(plain), adamw(paged)
    with page(paged, second, chunks=2):
        for n in range(steps):
            plain_step(plain, first, n)
            plain_step(paged, second, n)
        made = way(second)
        assert equal(made.state_dict(), first.state_dict())
        weights = way([*paged.parameters(), paged.layers[0].up.weight[:3]])
        assert equal(weights[:-1], list(plain.parameters()))
        assert equal(weights[-1], plain.layers[0].up.weight[:3])
        assert weights[-1].requires_grad


def test_copies_on_the_host_are_not_another_attachments_memory():
    """A pass of another model that no step has followed, as a GAN's critic is left with."""
    _, model = pair(make)
    critic = torch.nn.Linear(96, 96)
    optimizer, other = adamw(model), adamw(critic)
    with page(model, optimizer), page(critic, other, gpu_memory=16 * GRANULE) as last:
        plain_step(model, optimizer, 0)
        critic(torch.ones(2, 96)).sum().backward()
        wanted = sum(v.nbytes for s in optimizer.state.values() for v in s.values())
        assert wanted > last.budget
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))


@pytest.mark.parametrize("own", [True, False], ids=["its own pass", "another's pass"])
def test_detach_needs_no_device_memory(own):
    """As behind a step that was out of memory, whose activations the error's traceback has."""
    plain, model = pair(make)
    backward(plain, 0)
    critic = torch.nn.Linear(96, 96)
    optimizer, other = adamw(model), adamw(critic)
    attached = page(model, optimizer, step_in_backward=False)
    with page(critic, other, gpu_memory=16 * GRANULE):
        backward(model, 0)
        running = model(DATA[0]) if own else critic(torch.ones(2, 96))
        filled = []

        def fill():
            while True:
                filled.append(torch.zeros(64 * KIB, dtype=torch.uint8))

        with pytest.raises(OutOfMemory):
            fill()
        assert running.requires_grad
        attached.detach()
    assert same_weights(plain, model)
    for want, got in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(want.grad, got.grad)
