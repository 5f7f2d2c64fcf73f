# SPDX-License-Identifier: Apache-2.0
"""What training loops do beside stepping: schedules, accumulation, clipping, errors, resuming."""

from __future__ import annotations

import copy
import io
import pickle
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from fault_tally import fail_in_turn
from interrupts import interrupted
from own_thread import in_a_thread
from torch import nn
from training_both import DATA, backward, same
from training_tower import (
    GRANULE,
    Tower,
    adamw,
    batches,
    both_ways,
    drawn,
    loss_of,
    page,
    pair,
    same_state,
    same_weights,
    train,
)

from penstock.errors import OutOfMemory, PenstockError, UsageError
from penstock.paging.training.loop import PLAIN_STEPS
from penstock.paging.training.update import Update


def test_schedulers_and_groups():
    plain, paged = pair()

    def make(model):
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "lr": 0.01}]
        optimizer = torch.optim.AdamW(groups, lr=3e-3)
        return optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)

    first, schedule = make(plain)
    want = train(plain, first, batches(), scheduler=schedule)
    second, schedule = make(paged)
    with page(paged, second):
        assert train(paged, second, batches(), scheduler=schedule) == want
    assert same_weights(plain, paged)


@pytest.mark.parametrize("in_backward", [True, False])
def test_small_units_are_updated_together(in_backward, monkeypatch):
    calls = []
    step = Update.__call__

    def count(update, parameters, **more):
        chosen = list(parameters)
        calls.append(len(chosen))
        step(update, chosen, **more)

    monkeypatch.setattr(Update, "__call__", count)
    data = batches()
    both_ways(drawn(), partial(train, data=data), chunks=4000, step_in_backward=in_backward)
    assert max(calls) > 4
    assert len(calls) <= 2 * len(data)  # those that stay on the device may go by themselves


@pytest.mark.parametrize("in_backward", [True, False])
def test_accumulation(in_backward):
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    data = batches(8)
    want = []
    for start in range(0, 8, 4):
        for ids in data[start : start + 4]:
            loss = loss_of(plain, ids) / 4
            loss.backward()
            want.append(loss.item())
        first.step()
        first.zero_grad()
    got = []
    with page(paged, second, chunks=40, step_in_backward=in_backward) as attached:
        for start in range(0, 8, 4):
            for ids in data[start : start + 3]:
                with attached.accumulate():
                    loss = loss_of(paged, ids) / 4
                    loss.backward()
                    got.append(loss.item())
            loss = loss_of(paged, data[start + 3]) / 4
            loss.backward()
            got.append(loss.item())
            second.step()
            second.zero_grad()
    assert got == want
    assert same_weights(plain, paged)
    assert same_state(first, second)


def test_gradients_that_a_step_has_used_and_that_grow_on():
    def loop(model, optimizer, n):
        if n % 2:
            optimizer.zero_grad()
        loss = backward(model, n)
        optimizer.step()
        return loss

    same(loop)


@pytest.mark.filterwarnings("ignore:Using backward.* with create_graph")
@pytest.mark.parametrize("adds", [True, False])
def test_a_penalty_on_gradients_with_a_graph(adds):
    def loop(model, optimizer, n):
        if adds:
            backward(model, n)
        loss_of(model, DATA[n]).backward(create_graph=True)
        penalty = sum(p.grad.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        (penalty + loss_of(model, DATA[n + 1])).backward()
        optimizer.step()
        optimizer.zero_grad()
        return penalty.item()

    same(loop, steps=3, chunks=20)


def test_clipping_by_the_norm_of_all():
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    norms, want = [], []
    for ids in batches():
        loss = loss_of(plain, ids)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(plain.parameters(), 0.05).item())
        first.step()
        first.zero_grad()
        want.append(loss.item())
    with page(paged, second, clip_norm=0.05, chunks=40) as attached:
        got = []
        for ids, norm in zip(batches(), norms, strict=True):
            got += train(paged, second, [ids])
            assert attached.grad_norm.item() == norm
    assert min(norms) > 0.05
    assert got == want
    assert same_weights(plain, paged)


def test_accumulated_gradients_can_be_dropped():
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    want = train(plain, first, batches(3))
    with page(paged, second, chunks=40) as attached:
        with attached.accumulate():
            loss_of(paged, batches(9)[8]).backward()
        attached.drop_gradients()
        assert train(paged, second, batches(3)) == want


def test_after_a_backward_that_failed_training_goes_on():
    _, paged = pair()
    optimizer = adamw(paged)

    def fail(gradient):
        raise MemoryError("no room")

    with page(paged, optimizer, chunks=40, step_in_backward=True) as attached:
        train(paged, optimizer, batches(2))
        failing = paged.layers[0].up.weight.register_hook(fail)
        with pytest.raises(MemoryError):
            loss_of(paged, batches()[2]).backward()
        failing.remove()
        with pytest.raises(UsageError, match="updated in backward"):  # later layers
            loss_of(paged, batches()[2]).backward()
        attached.abandon_step()
        losses = train(paged, optimizer, batches(1) * 6)
        assert losses[-1] < losses[0]


def test_checkpoints_go_both_ways():
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    train(plain, first, batches(3))
    with page(paged, second):
        train(paged, second, batches(3))
        saved = copy.deepcopy(second.state_dict())
        weights = paged.state_dict()
    want = train(plain, first, batches(3))
    # Into an optimizer that is attached already, and into one that will be.
    for before in (False, True):
        torch.manual_seed(5)
        model = Tower()
        model.load_state_dict(weights)
        optimizer = adamw(model)
        if before:
            optimizer.load_state_dict(copy.deepcopy(saved))
        with page(model, optimizer):
            if not before:
                train(model, optimizer, [])
                optimizer.load_state_dict(copy.deepcopy(saved))
            assert train(model, optimizer, batches(3)) == want
            assert same_state(first, optimizer)
        assert same_weights(plain, model)


def test_a_model_that_is_attached_takes_a_checkpoint():
    """As the best one at the end is, or that of a run that goes on; before any pass too."""
    plain = drawn()
    checkpoint = copy.deepcopy((Tower().state_dict(), adamw(plain).state_dict()))

    def run(model, optimizer):
        model.load_state_dict(checkpoint[0])
        losses = train(model, optimizer, batches(PLAIN_STEPS + 2))
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        losses += train(model, optimizer, batches(3))
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        losses += train(model, optimizer, batches(3))
        model.layers[1].load_state_dict(model.layers[0].state_dict())
        return losses

    assert both_ways(plain, run).updates_in_backward


def test_evaluation_in_between():
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)

    def run(model, optimizer):
        losses = []
        for ids in batches():
            losses += train(model, optimizer, [ids])
            model.eval()
            with torch.no_grad():
                losses.append(loss_of(model, ids).item())
            model.train()
        return losses

    want = run(plain, first)
    with page(paged, second) as attached:
        with torch.no_grad():
            loss_of(paged, batches(1)[0])
        # The first training step is still to be watched, and nothing else until then.
        assert attached.hooks.watching
        now = torch.utils._python_dispatch._get_current_dispatch_mode()
        assert now is attached.hooks.between
        assert run(paged, second) == want
        assert not attached.hooks.watching


class Moody(Tower):
    """Fails when told to, in forward or in backward."""

    fail: str | None = None

    def forward(self, ids):
        logits = super().forward(ids)
        if self.fail == "forward":
            raise RuntimeError("forward")
        if self.fail == "backward":
            middle = self.layers[2].up.weight
            logits = logits + Fails.apply(middle).sum() * 0
        return logits


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.ones(1)

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("backward")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_leaves_the_next_step_whole(where):
    plain, paged = pair(Moody)
    first, second = adamw(plain), adamw(paged)
    data = batches(4)
    want = train(plain, first, data[:2]) + train(plain, first, data[2:])
    with page(paged, second, chunks=40):
        got = train(paged, second, data[:2])
        paged.fail = where
        with pytest.raises(RuntimeError, match=where):
            train(paged, second, data[2:])
        paged.fail = None
        second.zero_grad()
        # Nothing had been updated when it failed: the first node of backward was the one.
        assert got + train(paged, second, data[2:]) == want


def pickled(gradient):
    return pickle.loads(pickle.dumps(gradient))


def saved(gradient):
    file = io.BytesIO()
    torch.save({"gradient": gradient, "again": gradient}, file)
    file.seek(0)
    return torch.load(file)["again"]


@contextmanager
def with_gradients():
    plain, paged = pair()
    loss_of(plain, batches(1)[0]).backward()
    with page(paged, adamw(paged), chunks=40):
        loss_of(paged, batches(1)[0]).backward()
        yield plain, paged


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_a_copy_of_a_gradient_is_an_ordinary_tensor(copied):
    with with_gradients() as (plain, paged):
        for want, parameter in zip(plain.parameters(), paged.parameters(), strict=True):
            made = copied(parameter.grad)
            assert type(made) is torch.Tensor
            assert torch.equal(made, want.grad)


@pytest.mark.parametrize(
    "read",
    [repr, str, lambda g: g.tolist(), lambda g: g.cpu().numpy().sum(), lambda g: f"{g[0, 0]:.3f}"],
)
def test_a_gradient_is_printed_and_read_as_an_ordinary_tensor(read):
    with with_gradients() as (plain, paged):
        assert read(paged.table.weight.grad) == read(plain.table.weight.grad)


def test_what_cannot_be_is_refused():
    model = Tower()
    with pytest.raises(UsageError, match="all parameters and gradients"):
        page(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UsageError, match=r"not a torch\.optim\.Optimizer"):
        page(model, object())
    with pytest.raises(UsageError, match=r"updates no parameter .*try: an optimizer over model"):
        page(model, adamw(Tower()))
    with pytest.raises(UsageError, match="clip_norm"):
        page(model, adamw(model), clip_norm=-1.0)
    with pytest.raises(OutOfMemory, match="smallest that works"):
        page(model, adamw(model), gpu_memory=GRANULE)
    optimizer = adamw(model)
    with page(model, optimizer, chunks=40), pytest.raises(UsageError, match="attached already"):
        page(model, optimizer)


@in_a_thread
def test_host_memory_for_the_state_is_checked():
    model, _ = pair()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    optimizer = adamw(model)
    with (
        page(model, optimizer, host_memory=int(1.5 * weights), chunks=40),
        pytest.raises(OutOfMemory, match="page-locked"),
    ):
        train(model, optimizer, batches(1))


@pytest.mark.slow
def test_a_failing_driver_call_is_clean(left):
    """Attach, two steps, detach, with some driver call failing: an error or the same training,
    and nothing left."""

    def run(fail_at_call):
        torch.manual_seed(0)
        model = Tower(layers=2)
        optimizer = adamw(model)
        emulated = {"granularity": GRANULE, "fail_at_call": fail_at_call}
        attached = page(model, optimizer, chunks=16, emulated=emulated)
        try:
            losses = train(model, optimizer, batches(2))
            calls = attached.device.driver_calls()
        finally:
            try:
                attached.detach()
            except PenstockError:  # the failing call was one of its own
                # Once: nothing is lost, the next detach() has it. For good: without the content.
                attached.detach(keep=fail_at_call >= 0)
        return calls, losses, model

    calls, want, trained = run(0)
    assert calls > 300

    def same(call):
        """Done without the call that failed: a resize, say, of which a slow host makes more."""
        _, losses, model = run(call)
        assert losses == want, call
        # For good the driver may give no content at the end, which leaves the model empty.
        empty = call < 0 and not any(p.numel() for p in model.parameters())
        assert empty or same_weights(trained, model), call

    assert fail_in_turn("attach_training()", same, calls, few=40)
    assert all(not any(counts.values()) for counts in left)


def against_each_other(models, optimizers, steps=12):
    """Two models by turns, the second judging what the first makes; weights are read in between."""
    first, second = models
    seen = []
    for n, ids in enumerate(batches(steps)):
        for optimizer, sign in zip(optimizers, (1, -1), strict=True):
            made = first(ids).softmax(-1) @ second.table.weight.detach()[:300]
            for layer in second.layers:
                made = layer(made)
            loss = sign * second.head(made).square().mean() + loss_of(second, ids)
            loss.backward()
            optimizer.step()
            for each in optimizers:
                each.zero_grad()
            seen.append(loss.item())
        if n % 2:
            seen += [model.layers[1].up.weight.norm().item() for model in models]
    return seen


def test_two_attached_models_at_once_and_after_them():
    for _ in range(2):  # nothing of the first two is left for those that follow
        plain, paged = zip(pair(layers=2), pair(layers=2), strict=True)
        want = against_each_other(plain, [adamw(model) for model in plain])
        optimizers = [adamw(model) for model in paged]
        attached = [page(*each, chunks=60) for each in zip(paged, optimizers, strict=True)]
        assert against_each_other(paged, optimizers) == want
        for each in attached:
            each.detach()
        assert all(map(same_weights, plain, paged))


def test_a_rate_that_is_set_for_every_backward_of_an_accumulated_step():
    plain, paged = pair(layers=2)
    first, second = adamw(plain), adamw(paged)

    def step(model, optimizer, n, accumulate):
        for part, ids in enumerate(batches(2)):
            optimizer.param_groups[0]["lr"] = 1e-3 * (1 + n + part)
            with accumulate() if part == 0 else nullcontext():
                loss_of(model, ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    with page(paged, second, step_in_backward=True) as attached:
        for n in range(3):
            step(plain, first, n, nullcontext)
            step(paged, second, n, attached.accumulate)
    assert same_weights(plain, paged)


def test_a_reference_pass_that_freezes_the_weights_while_it_lasts():
    """As adapters are switched for one, between forward and backward; later steps go without it."""

    def run(model, optimizer):
        seen = []
        for n, ids in enumerate(batches(PLAIN_STEPS + 4)):
            loss = loss_of(model, ids)
            if n <= PLAIN_STEPS:
                model.requires_grad_(False)
                with torch.no_grad():
                    reference = loss_of(model, ids)
                model.requires_grad_(True)
                loss = loss * reference
            loss.backward()
            seen += [nn.utils.clip_grad_norm_(model.parameters(), 0.1).item(), loss.item()]
            optimizer.step()
            optimizer.zero_grad()
        return seen

    assert not both_ways(drawn(layers=2), run, chunks=8).updates_in_backward


@pytest.mark.parametrize("call", ["begin", "end"])
def test_an_interrupt_may_come_while_a_use_begins_or_ends(call):
    plain, model = pair()
    optimizers = adamw(plain), adamw(model)

    data = batches(1)

    def same_step():
        assert train(plain, optimizers[0], data) == train(model, optimizers[1], data)

    with page(model, optimizers[1], chunks=8, step_in_backward=False) as attached:
        same_step()
        for number in range(3, 13, 2):
            with interrupted(attached.pager, call, number):
                loss_of(model, data[0]).backward()
            optimizers[1].zero_grad()
            same_step()
    assert same_weights(plain, model)
