# SPDX-License-Identifier: Apache-2.0
"""The mode that brings in what code outside the model touches, in loops that use gradients."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
)
from training_both import DATA, backward, make, plain_step, same
from training_tower import (
    GRANULE,
    Tower,
    adamw,
    both_ways,
    drawn,
    learn,
    loss_of,
    page,
    pair,
    same_weights,
)

from penstock.errors import OutOfMemory
from penstock.paging.training.between import Between
from penstock.paging.training.loop import PLAIN_STEPS

STEPS = PLAIN_STEPS + 5


def is_on():
    return isinstance(_get_current_dispatch_mode(), Between)


def clipped(model, optimizer, n, *, seen, loss_from=lambda model, n, loss: loss):
    """A step as most loops have it; whether the mode is on in backward, and behind it."""
    loss = loss_from(model, n, loss_of(model, DATA[n]))
    in_backward = []
    loss.register_hook(lambda gradient: in_backward.append(is_on()))
    loss.backward()
    seen.append((*in_backward, is_on()))
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), norm.item()


def watched(step, seen):
    """What was `seen` of the attached one's steps."""

    def run(model, optimizer):
        seen.clear()
        return [step(model, optimizer, n, seen=seen) for n in range(STEPS)]

    both_ways(drawn(make), run, chunks=8)


def test_backward_runs_without_it_where_it_found_nothing_there():
    seen = []
    watched(clipped, seen)
    assert seen[:PLAIN_STEPS] == [(True, True)] * PLAIN_STEPS
    assert seen[PLAIN_STEPS:] == [(False, True)] * (STEPS - PLAIN_STEPS)


@pytest.mark.parametrize("first", [2, PLAIN_STEPS + 2])
def test_a_loss_that_reads_weights_outside_the_model(first):
    """Its backward reads them again."""

    def with_penalty(model, n, loss):
        if n < first:
            return loss
        return loss + sum(p.square().sum() for p in model.parameters()) * 1e-4

    seen = []
    watched(functools.partial(clipped, loss_from=with_penalty), seen)
    assert all(on for on, _ in seen[first:])


@pytest.mark.parametrize("asked", [None, True])
def test_a_loss_that_reads_weights_once_updates_are_in_backward(asked):
    def step(model, optimizer, n):
        loss = loss_of(model, DATA[n])
        if n % 4 == 2 or n > PLAIN_STEPS + 2:
            loss = loss + sum(p.square().sum() for p in model.parameters()) * 1e-4
        return learn(optimizer, loss)

    same(step, steps=STEPS, chunks=8, in_backward=True, step_in_backward=asked)


@pytest.mark.parametrize("whole", [True, False])
def test_weights_are_read_where_another_thread_runs_the_model(whole):
    """All of a step, reading with it, or forward alone."""

    def run(model, optimizer):
        with ThreadPoolExecutor(1) as pool:

            def there(f, *args):
                return pool.submit(f, *args).result()

            def step(n, loss_from):
                loss = loss_from(loss_of, model, DATA[n])
                learn(optimizer, loss)
                return loss.item(), [p.norm().item() for p in model.parameters()]

            if whole:
                return [there(step, n, lambda f, *args: f(*args)) for n in range(3)]
            return [step(n, there) for n in range(3)]

    both_ways(drawn(make), run, chunks=8)


@pytest.mark.parametrize("how", ["norms", "penalty", "lists", "a second pass"])
def test_weights_touched_behind_the_first_backward_need_not_stay(how):
    """The budget does not hold all of them at once."""

    def act(model, optimizer, n):
        weights = list(model.parameters())
        if how == "norms":
            return [p.norm().item() for p in weights]
        if how == "penalty":
            for p in weights:
                p.grad.data.add_(p.data.sign(), alpha=1e-3)
            return None
        with torch.no_grad():
            torch._foreach_mul_(weights, 0.999)
        if how == "a second pass":
            backward(model, n + 1)
            with torch.no_grad():
                torch._foreach_mul_(weights, 1 / 0.999)
        return None

    def run(model, optimizer):
        return [plain_step(model, optimizer, n, before_step=act) for n in range(3)]

    assert both_ways(drawn(), run, chunks=8).iteration_page_loads > 0


def test_a_hook_that_reads_another_weight():
    def hooked(model, optimizer, n, **more):
        other = model.layers[0].up.weight
        handle = model.layers[1].down.bias.register_hook(lambda g: g + other.sum() * 1e-3)
        try:
            return clipped(model, optimizer, n, **more)
        finally:
            handle.remove()

    def later(model, optimizer, n, **more):
        return (clipped if n < 3 else hooked)(model, optimizer, n, **more)

    seen = []
    watched(later, seen)
    assert all(on for on, _ in seen[3:])


@pytest.mark.parametrize("around", ["forward", "backward", "the rest"])
def test_modes_of_the_program_stay_its_own(around):
    """PyTorch leaves whichever mode is on top, so that one of ours there would be left for it."""

    class Counts(TorchDispatchMode):
        operators = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operators += 1
            return func(*args, **(kwargs or {}))

    def run(model, optimizer):
        losses, counts = [], Counts()
        norms = lambda: sum(p.norm().item() for p in model.parameters())  # noqa: E731
        for n in range(STEPS):
            with counts if around == "forward" else contextlib.nullcontext():
                loss = loss_of(model, DATA[n])
            with counts if around == "backward" else contextlib.nullcontext():
                loss.backward()
            with counts if around == "the rest" else contextlib.nullcontext():
                losses += [loss.item(), norms()]
                optimizer.step()
                optimizer.zero_grad()
                losses += [norms(), loss_of(model, DATA[n]).item()]
            assert counts not in _get_current_dispatch_mode_stack()
        assert counts.operators
        return losses

    both_ways(drawn(make), run, chunks=8)
    assert not _get_current_dispatch_mode_stack()


def test_an_interrupt_may_come_while_a_mode_is_left():
    plain, model = pair(make)
    optimizers = adamw(plain), adamw(model)

    def interrupt(frame, event, arg):
        if event == "call" and frame.f_code is _pop_mode.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with page(model, optimizers[1], chunks=8):
        for n in range(3):
            sys.setprofile(interrupt)
            with pytest.raises(KeyboardInterrupt):
                loss_of(model, DATA[n])
            optimizers[1].zero_grad()
            assert plain_step(plain, optimizers[0], n) == plain_step(model, optimizers[1], n)
    assert same_weights(plain, model)
    assert not _get_current_dispatch_mode_stack()


def test_a_refused_attachment_replaces_nothing():
    before = torch.autograd._engine_run_backward
    model = make()
    with pytest.raises(OutOfMemory) as refused:
        page(model, adamw(model), gpu_memory=GRANULE)
    assert refused.value.__traceback__ is not None  # it holds what was made until then
    assert torch.autograd._engine_run_backward is before


def test_nothing_stays_replaced():
    before = torch.autograd._engine_run_backward
    first, second = pair(make)
    one, other = page(first, adamw(first)), page(second, adamw(second))
    assert torch.autograd._engine_run_backward is not before
    one.detach()
    assert torch.autograd._engine_run_backward is not before
    other.detach()
    assert torch.autograd._engine_run_backward is before


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_between_forward_and_backward(to_none):
    def loop(model, optimizer, n):
        loss = loss_of(model, DATA[n])
        optimizer.zero_grad(set_to_none=to_none)
        loss.backward()
        optimizer.step()
        return loss.item()

    same(loop, in_backward=True)


class Keeps(Tower):
    """As modules do with a loss of their own, or a weight that is made of others."""

    def forward(self, ids):
        self.kept = super().forward(ids)
        return self.kept


def test_a_graph_that_a_module_keeps_does_not_keep_the_module():
    model = Keeps(layers=2)
    optimizer = adamw(model)
    with page(model, optimizer):
        plain_step(model, optimizer, 0)
    gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert gone() is None
