# SPDX-License-Identifier: Apache-2.0
"""Activations that leave the device: errors, and what steps that have broken off leave."""

from __future__ import annotations

import gc

import pytest
import torch
from deep_layers import (
    ROWS,
    attach,
    dead_references,
    inputs,
    pair,
    plain_loop,
    same,
    sgd,
    top_hooks,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from training_tower import learn

import penstock
from penstock.errors import OutOfMemory
from penstock.paging.training.between import Between
from penstock.paging.training.room import Room
from penstock.units import MIB

pytestmark = pytest.mark.usefixtures("small_blocks")


def test_a_forward_that_fails_leaves_nothing():
    class Broken(Exception):
        pass

    fails = [True]

    def between(x):
        if fails[0]:
            raise Broken
        return x

    plain, paged = pair(between=between)
    optimizer = sgd(paged)
    with attach(paged, optimizer) as attached:
        for _ in range(2):
            with pytest.raises(Broken):
                paged(inputs()[0])
            assert top_hooks(False) is None
            gc.collect()
            attached.activations.saving.settle()
            assert attached.activations.saving.saved == 0
        fails[0] = False
        assert plain_loop(paged, optimizer, inputs()[0]) == plain_loop(
            plain, sgd(plain), inputs()[0]
        )
        assert attached.stats().activation_bytes_in > 0


def test_a_forward_that_fails_leaves_no_mode_of_its_own():
    def between(x):
        raise ZeroDivisionError

    model, _ = pair(between=between)
    with attach(model, sgd(model)):
        with pytest.raises(ZeroDivisionError):
            model(inputs()[0])
        assert [type(each) for each in _get_current_dispatch_mode_stack()] == [Between]
    assert not _get_current_dispatch_mode_stack()


def test_a_pass_without_gradients_that_fails_gives_no_step_up():
    fails = [False]

    def between(x):
        if fails[0]:
            raise ZeroDivisionError
        return x

    def loop(model, optimizer, x):
        loss = model(x).square().mean()
        fails[0] = True
        with torch.no_grad(), pytest.raises(ZeroDivisionError):
            model(x)
        fails[0] = False
        for each in penstock.attachments():
            assert each.activations.pending
        return [learn(optimizer, loss)]

    same(loop, between=between)


def test_an_error_that_the_program_is_handling_is_not_forwards(monkeypatch):
    def loop(model, optimizer, x):
        try:
            raise OutOfMemory("of another batch")
        except OutOfMemory:
            out = model(x)
            pending.extend(each.activations.pending for each in penstock.attachments())
            loss = out.square().mean()
            learn(optimizer, loss)
        return [loss.item()]

    pending: list[bool] = []
    failed: list[tuple] = []
    monkeypatch.setattr(Room, "failed", lambda *of: failed.append(of))
    same(loop)
    assert pending == 4 * [True]
    assert failed == []  # no more leaves for it


@pytest.mark.slow
def test_passes_that_no_backward_follows_leave_nothing():
    model, _ = pair()
    with attach(model, sgd(model)):
        model(inputs()[0][:2])
        before = dead_references()
        for _ in range(3):
            model(inputs()[0])
            gc.collect()
        assert dead_references() > before + 20
        model(inputs()[0][:2])
        assert dead_references() == before


def test_a_forward_that_is_interrupted_leaves_hooks_that_do_nothing():
    interrupt = [True]

    def between(x):
        if interrupt[0]:
            raise KeyboardInterrupt
        return x

    plain, paged = pair(between=between)
    optimizer = sgd(paged)
    interrupt[0] = False
    want = plain_loop(plain, sgd(plain), inputs()[0])
    interrupt[0] = True
    attached = attach(paged, optimizer)
    with pytest.raises(KeyboardInterrupt):
        paged(inputs()[0])
    interrupt[0] = False
    gc.collect()
    assert plain_loop(paged, optimizer, inputs()[0]) == want
    assert top_hooks(False) is None
    attached.detach()


def test_backward_after_detach_when_nothing_saved_lies_in_weights():
    """A single layer saves its input alone: no page is needed, and nothing is there to page."""
    model = torch.nn.Linear(ROWS, ROWS)
    x = torch.randn(ROWS, ROWS)
    (want,) = torch.autograd.grad(model(x).square().sum(), model.weight)
    attached = attach(model, sgd(model))
    loss = model(x).square().sum()
    attached.detach()
    loss.backward()
    assert torch.equal(model.weight.grad, want)


def test_detach_between_forward_and_backward():
    model, _ = pair()
    attached = attach(model, sgd(model))
    out = model(inputs()[0])
    node = out.grad_fn
    attached.detach()
    assert top_hooks(False) is None
    # What had left can still be asked for.
    plain, _ = pair()
    expected = plain(inputs()[0]).grad_fn

    def is_activation(value):  # weights are gone with the attachment
        return torch.is_tensor(value) and value.dim() == 2 and value.shape[0] == ROWS

    def saved_by(node):
        found, seen, nodes = [], set(), [node]
        while nodes:
            node = nodes.pop(0)
            if node is None or node in seen:
                continue
            seen.add(node)
            found += [
                getattr(node, name)
                for name in dir(node)
                if name.startswith("_saved_") and is_activation(getattr(node, name))
            ]
            nodes += [each for each, _ in node.next_functions]
        return found

    got, want = saved_by(node), saved_by(expected)
    assert len(got) > 60
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_tensors_kept_after_backward():
    kept = []

    def loop(model, optimizer, x):
        seen = []
        handles = [
            layer.register_forward_hook(lambda _m, _i, out: seen.append(out))
            for layer in model.layers[::4]
        ]
        out = model(x)
        loss = out.square().mean()
        learn(optimizer, loss)
        for handle in handles:
            handle.remove()
        kept.append([*seen, out])
        return [loss.item(), *(each.sum().item() for each in seen)]

    plain, paged = pair()
    want = [loop(plain, sgd(plain), x) for x in inputs(2)]
    with attach(paged, sgd(paged), 3 * MIB):
        got = [loop(paged, sgd(paged), x) for x in inputs(2)]
    assert got == want
    for a, b in zip(kept[:2], kept[2:], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_backward_that_fails_leaves_no_mode_with_the_attachment():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError

    model, _ = pair(between=Fails.apply)
    with attach(model, sgd(model)), pytest.raises(ZeroDivisionError):
        model(inputs()[0]).sum().backward()
    assert not _get_current_dispatch_mode_stack()


def test_a_model_that_is_dropped_amid_an_operator_leaves_its_mode_alone():
    """Operators of the same thread that have begun under it count on it."""

    class Drops(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            memory.leave(budget)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    model, _ = pair(between=Drops.apply)
    with attach(model, sgd(model)) as attached:
        memory, budget = attached.manager.torch, attached.manager.budget
        model(inputs()[0])
        assert _get_current_dispatch_mode_stack()
        memory.count_in(budget)
    assert not _get_current_dispatch_mode_stack()


def test_a_layer_that_finds_no_room_has_activations_leave():
    """Tensors have taken what the step before had left, and what pages had."""
    taken = []

    def between(x):
        for each in penstock.attachments():
            if each.steps == 2:
                shares = each.manager.budget.shares()
                taken.append(torch.empty(shares.limit - shares.others, dtype=torch.uint8))
                assert each.manager.budget.shares().pagers == 0
        return x

    def loop(model, optimizer, x):
        losses = plain_loop(model, optimizer, x)
        taken.clear()
        return losses

    same(loop, budget=6 * MIB, between=between)
