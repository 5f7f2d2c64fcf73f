# SPDX-License-Identifier: Apache-2.0
"""attach_training() where little is trained, as with LoRA: it stays, under loops of every kind."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from training_tower import (
    GRANULE,
    Tower,
    adamw,
    batches,
    both_ways,
    drawn,
    learn,
    loss_of,
    page,
    pair,
    same_state,
    same_weights,
)

from penstock.paging import blocks
from penstock.paging.training.attach import LITTLE_SHARE, STATE
from penstock.paging.training.loop import PLAIN_STEPS

RANK = 2
STEPS = PLAIN_STEPS + 4  # so that what is paged would be updated in backward
BUDGET = 56 * GRANULE  # with activations; the weights are 19 pages
DATA = batches(STEPS)


class Adapted(nn.Module):
    """A frozen linear layer, and what is trained beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, RANK, bias=False)
        self.b = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def tower(recompute=None):
    model = Tower(recompute=recompute).requires_grad_(False)
    for layer in model.layers:
        layer.up, layer.down = Adapted(layer.up), Adapted(layer.down)
    return model


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def optimizer_of(model):
    return torch.optim.AdamW(trained(model), lr=1e-2)


def plain(model, optimizer, n):
    return learn(optimizer, loss_of(model, DATA[n]))


def clipped(model, optimizer, n):
    loss = loss_of(model, DATA[n])
    loss.backward()
    norm = nn.utils.clip_grad_norm_(trained(model), 0.01)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), norm.item()


def scaled_by_hand(model, optimizer, n):
    loss = loss_of(model, DATA[n])
    (1024 * loss).backward()
    for parameter in trained(model):
        parameter.grad /= 1024
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.item()


def accumulated(model, optimizer, n):
    loss = loss_of(model, DATA[n]) / 2
    loss.backward()
    if n % 2:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def by_a_scaler(model, optimizer, n, scaler):
    loss = loss_of(model, DATA[n])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item()


def both(loop, make=tower, **more):
    """The loop with everything resident and attached; what the attachment says at the end."""
    plain = drawn(make)

    def run(model, optimizer):
        return [loop(model, optimizer, n) for n in range(STEPS)]

    def check(attached):
        attached, resident = (model.state_dict().values() for model in (attached.model, plain))
        assert all(map(torch.equal, attached, resident))

    return both_ways(plain, run, optimizer_of, meanwhile=check, gpu_memory=BUDGET, **more)


@pytest.mark.parametrize("in_backward", [None, True, False])
@pytest.mark.parametrize("recompute", [None, "reentrant", "not reentrant"])
def test_what_little_is_trained_stays(recompute, in_backward):
    make = functools.partial(tower, recompute)
    stats = both(plain, make, step_in_backward=in_backward)
    assert (2 + STATE) * stats.trained_bytes < LITTLE_SHARE * BUDGET
    assert stats.state_bytes == stats.iteration_bytes_out == 0  # of what is paged
    assert stats.pinned_bytes >= stats.trained_bytes
    assert not stats.updates_in_backward


@pytest.mark.parametrize("loop", [clipped, scaled_by_hand, accumulated])
@pytest.mark.parametrize("in_backward", [None, True])
def test_loops_that_look_at_gradients(loop, in_backward):
    both(loop, step_in_backward=in_backward)


def test_a_scaler_of_gradients():
    scalers = {}

    def loop(model, optimizer, n):
        made = scalers.setdefault(model, torch.amp.GradScaler("cpu", init_scale=256.0))
        return by_a_scaler(model, optimizer, n, made)

    both(loop, step_in_backward=True)


def test_clipping_by_the_attachment():
    first, second = pair(tower)
    optimizers = [optimizer_of(model) for model in (first, second)]
    want = [clipped(first, optimizers[0], n) for n in range(4)]
    with page(second, optimizers[1], gpu_memory=BUDGET, clip_norm=0.01) as attached:
        got = []
        for n in range(4):
            loss = plain(second, optimizers[1], n)
            got.append((loss, attached.grad_norm.item()))
        assert got == want
    assert same_weights(first, second)


def test_state_of_before_comes_along():
    first, second = pair(tower)
    optimizers = [optimizer_of(model) for model in (first, second)]
    for model, optimizer in zip((first, second), optimizers, strict=True):
        plain(model, optimizer, 0)
    want = [plain(first, optimizers[0], n) for n in range(1, 4)]
    with page(second, optimizers[1], gpu_memory=BUDGET):
        assert [plain(second, optimizers[1], n) for n in range(1, 4)] == want
    assert same_state(*optimizers)


def test_more_than_little_is_paged():
    _, model = pair(Tower)
    with page(model, adamw(model), gpu_memory=BUDGET) as attached:
        assert attached.stats().pinned_bytes == 0


def test_small_weights_that_stay_are_clipped_by_the_loop(monkeypatch):
    """As in a large model, of which norms and the smallest adapters stay for another reason."""
    monkeypatch.setattr(blocks, "SMALL_MODEL", 0)
    monkeypatch.setattr(blocks, "SMALL_SHARE", 1.0)
    monkeypatch.setattr(blocks, "SMALL_BLOCK", 4 << 10)
    monkeypatch.setattr("penstock.paging.training.attach.LITTLE_SHARE", 0)
    stats = both(clipped)
    assert stats.pinned_bytes >= stats.trained_bytes


def test_a_model_that_is_little_stays_whole():
    def run(model, optimizer):
        return [plain(model, optimizer, n) for n in range(4)]

    assert both_ways(drawn(), run, gpu_memory=4096 * GRANULE).paged_bytes == 0
