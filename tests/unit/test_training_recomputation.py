# SPDX-License-Identifier: Apache-2.0
"""attach_training(): what checkpointed regions save when they are computed again leaves as well.

Regions of half the model each, at budgets where one alone is too much: what they compute again has
to leave and come back within backward.
"""

from __future__ import annotations

import copy
import gc
import warnings

import pytest
import torch
from deep_layers import (
    WIDTH,
    Deep,
    Layer,
    attach,
    inputs,
    nothing_left,
    pair,
    plain_loop,
    same,
    sgd,
    top_hooks,
)
from own_thread import in_a_thread
from torch import nn
from torch.utils import checkpoint as torchs
from torch.utils.checkpoint import checkpoint
from training_tower import both_ways, drawn, learn

from penstock.errors import OutOfMemory
from penstock.paging.training import recomputation
from penstock.paging.training.host_buffers import HostBuffers
from penstock.paging.training.saved import Block
from penstock.units import KIB, MIB

pytestmark = pytest.mark.usefixtures("small_blocks")

WAYS = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
BUDGET = 1792 * KIB  # a region saves 3.2 MiB


class Halves(nn.Module):
    """Deep in two regions."""

    def __init__(self, reentrant, run=lambda layers, x: layers(x)):
        super().__init__()
        layers = Deep()
        self.enter = layers.enter
        self.halves = nn.ModuleList(nn.Sequential(*layers.layers[n : n + 8]) for n in (0, 8))
        self.reentrant, self.run = reentrant, run

    def forward(self, x):
        x = self.enter(x)
        for half in self.halves:
            x = checkpoint(self.run, half, x, use_reentrant=self.reentrant)
        return x


class Headed(nn.Module):
    """One region, and logits that take more than it."""

    def __init__(self, reentrant):
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(*[Layer() for _ in range(44)])
        self.head = nn.Linear(WIDTH, 4096)
        self.reentrant = reentrant

    def forward(self, x):
        x = checkpoint(self.body, self.enter(x), use_reentrant=self.reentrant)
        return self.head(x).log_softmax(-1)


@pytest.fixture
def both(at_step_ends):
    """The loop over Halves both ways; equal, and bytes that recomputations saved have left."""

    def run_both(reentrant, loop=plain_loop, budget=BUDGET, **more):
        def run(model, optimizer):
            return [loop(model, optimizer, x) for x in inputs()]

        left = at_step_ends(lambda saving: saving.left_again)
        made = {"attach": attach, "meanwhile": nothing_left, "budget": budget}
        both_ways(drawn(Halves, reentrant=reentrant, **more), run, sgd, **made)
        assert min(left) > 0

    return run_both


@WAYS
def test_a_region_that_does_not_fit_is_out_of_memory_if_it_stays(reentrant):
    model = Halves(reentrant)
    with attach(model, sgd(model), BUDGET, activations="keep"), pytest.raises(OutOfMemory):
        plain_loop(model, sgd(model), inputs()[0])


@pytest.mark.slow
@WAYS
def test_a_region_that_does_not_fit(reentrant, both):
    both(reentrant)


@pytest.mark.slow
@WAYS
def test_a_region_that_fits_once_logits_have_gone_stays(reentrant, at_step_ends):
    left = at_step_ends(lambda saving: saving.left_again)

    def run(model, optimizer):
        return [plain_loop(model, optimizer, x) for x in inputs(8)]

    both_ways(drawn(Headed, reentrant=reentrant), run, sgd, attach=attach, budget=23 * MIB)
    assert left[0] > 0
    assert left[-4:] == [0] * 4


@pytest.mark.slow
@WAYS
def test_random_numbers_are_those_of_forward(reentrant, both):
    def loop(model, optimizer, x):
        torch.manual_seed(5)
        return plain_loop(model, optimizer, x)

    both(reentrant, loop, run=lambda layers, x: nn.functional.dropout(layers(x), 0.2).sin())


@pytest.mark.slow
@WAYS
def test_autocast(reentrant, both):
    def loop(model, optimizer, x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).square().mean()
        return [learn(optimizer, loss)]

    both(reentrant, loop)


@pytest.mark.slow
@WAYS
def test_regions_within_regions(reentrant, both):
    def run(layers, x):
        for layer in layers:
            x = checkpoint(lambda layer, x: layer(x).sin(), layer, x, use_reentrant=reentrant)
        return x

    both(reentrant, run=run, budget=1536 * KIB)


def test_regions_of_both_kinds(both):
    both(True, run=lambda layers, x: checkpoint(layers, x, use_reentrant=False))
    both(False, run=lambda layers, x: checkpoint(layers, x.sin(), use_reentrant=True))


@pytest.mark.slow
@WAYS
def test_several_forwards_before_one_backward(reentrant, both):
    def loop(model, optimizer, x):
        losses = [model(part).square().mean() for part in (x, 2 * x, 3 * x)]
        learn(optimizer, sum(losses))
        return [loss.item() for loss in losses]

    both(reentrant, loop, budget=2560 * KIB)


def test_a_graph_that_is_kept_is_computed_again_again(both):
    def loop(model, optimizer, x):
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        learn(optimizer, 2 * loss)
        return [loss.item()]

    both(False, loop)


def test_a_region_that_is_computed_to_its_end(both):
    def run(layers, x):
        return layers(x).sin()

    with torchs.set_checkpoint_early_stop(False):
        both(False, run=run)


def test_gradients_taken_within_a_region(both):
    def forces(layers, x):
        y = layers(x)
        (gradient,) = torch.autograd.grad(y.sin().mean(), y, create_graph=True)
        return y + gradient * y

    with torchs.set_checkpoint_early_stop(False):
        both(False, run=forces, budget=2 * MIB)


def test_what_is_kept_by_a_choice_of_operators():
    aten = torch.ops.aten

    def choice():
        return torchs.create_selective_checkpoint_contexts([aten.tanh.default])

    def run(layers, x):
        return checkpoint(layers, x, use_reentrant=False, context_fn=choice)

    same(around=run, budget=6 * MIB)


def test_what_a_region_changes_in_place_after_it_was_saved_is_no_error_as_in_torch(both):
    def run(layers, x):
        return layers(x) + x.sigmoid().add_(1)

    both(False, run=run)


@in_a_thread
def test_a_reentrant_region_that_changes_what_it_has_saved_is_pytorchs_error():
    def run(layers, x):
        return layers(x) + x.sigmoid().add_(1)

    model = Halves(True, run)
    with (
        attach(model, sgd(model), BUDGET),
        pytest.raises(RuntimeError, match="modified by an inplace operation"),
    ):
        model(inputs()[0]).sum().backward()
    assert top_hooks(False) is None


@WAYS
def test_a_recomputation_that_fails_leaves_nothing(reentrant):
    class Broken(Exception):
        pass

    runs = []

    def run(layers, x):
        runs.append(None)
        if len(runs) == 3:
            layers[:6](x)
            raise Broken
        return layers(x)

    model = Halves(reentrant, run)
    plain = copy.deepcopy(model)
    optimizer = sgd(model)
    with attach(model, optimizer, BUDGET) as attached:
        loss = model(inputs()[0]).sum()
        with pytest.raises(Broken):
            loss.backward()
        attached.abandon_step()
        assert top_hooks(False) is None
        del loss
        gc.collect()
        saving = attached.activations.saving
        saving.settle()
        assert saving.saved == 0
        again = saving.left_again
        out = model(inputs()[0])
        assert attached.activations.make_room(64 * MIB)
        assert saving.left_again == again  # what leaves now is forward's
        del out
        attached.abandon_step()
        want = plain_loop(plain, sgd(plain), inputs()[0])
        assert plain_loop(model, optimizer, inputs()[0]) == want


@WAYS
def test_detach_between_forward_and_backward(reentrant, monkeypatch):
    """The graph is still good; nothing leaves any more, and no host memory is asked for."""
    model = Halves(reentrant)
    plain = copy.deepcopy(model)
    x, y = (inputs()[0].requires_grad_() for _ in range(2))
    plain(y).square().mean().backward()
    attached = attach(model, sgd(model), BUDGET)
    loss = model(x).square().mean()
    saving = attached.activations.saving
    attached.detach()
    moved, taken = saving.bytes_out, []
    monkeypatch.setattr(HostBuffers, "take", lambda _, nbytes: taken.append(nbytes))
    monkeypatch.setattr(attached.manager.torch, "live", lambda: 1 << 40)  # it goes on counting
    loss.backward()
    assert torch.equal(x.grad, y.grad)
    assert saving.bytes_out == moved
    assert taken == []


def test_a_region_that_differs_when_computed_again_is_torchs_error():
    runs = []

    def run(layers, x):
        runs.append(None)
        y = layers(x)
        return y.sin() if len(runs) < 3 else y.unsqueeze(0).repeat(2, 1, 1).sin().sum(0)

    model = Halves(False, run)
    with attach(model, sgd(model), 8 * MIB), pytest.raises(torchs.CheckpointError):
        model(inputs()[0]).sum().backward()


@pytest.mark.slow
@WAYS
def test_what_regions_are_given_comes_back_once_and_last_first(reentrant, monkeypatch):
    """Once it is known what a recomputation needs."""
    fetched = []
    start_in = Block.start_in
    monkeypatch.setattr(
        Block, "start_in", lambda block: (fetched.append(block.number), start_in(block))[1]
    )

    def around(layer, x):
        return checkpoint(layer, x, use_reentrant=reentrant)

    model, _ = pair(around=around)
    optimizer = sgd(model)
    with attach(model, optimizer, 1792 * KIB):
        for x in inputs(8):
            plain_loop(model, optimizer, x)
            one = list(fetched)
            fetched.clear()
    assert len(one) > 4
    assert one == sorted(set(one), reverse=True)


# ---- In torch's place ----------------------------------------------------------------------------


def names():
    return torchs._checkpoint_hook, torchs._recomputation_hook, torchs.CheckpointFunction.forward


def test_torchs_own_are_back_when_the_last_attachment_has_gone():
    before = names()
    models = [pair()[0] for _ in range(2)]
    first, second = (attach(model, sgd(model), 8 * MIB) for model in models)
    assert all(a is not b for a, b in zip(names(), before, strict=True))
    first.detach()
    assert all(a is not b for a, b in zip(names(), before, strict=True))
    second.detach()
    assert names() == before


@WAYS
def test_models_that_are_not_attached_are_left_alone(reentrant):
    other, model = Halves(reentrant), Halves(reentrant)
    with attach(model, sgd(model), BUDGET) as attached:
        other(inputs()[0]).sum().backward()
        assert attached.activations.saving.most_saved == 0


@pytest.mark.parametrize("name", ["_checkpoint_hook", "_recomputation_hook", "CheckpointFunction"])
def test_a_pytorch_without_one_of_the_names_goes_without(name, monkeypatch):
    """A PyTorch that calls it something else; the regions are small enough to stay."""
    monkeypatch.delattr(torchs, name)
    with pytest.warns(UserWarning, match=f"has no {name}.*stays on the device"):
        uninstall = recomputation.REPLACED.install()
    uninstall()
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recomputation.REPLACED.install()()
