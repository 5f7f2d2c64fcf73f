# SPDX-License-Identifier: Apache-2.0
"""attach_training() under loops of every kind: as with everything resident, or one clear error.

What a loop is, and what must be equal: training_both.py.
"""

from __future__ import annotations

import contextlib
import copy
import functools

import pytest
import torch
from own_thread import in_a_thread
from torch import nn
from training_both import DATA, STEPS, backward, make, plain_step, same
from training_tower import (
    GRANULE,
    Tower,
    adamw,
    both_ways,
    drawn,
    loss_of,
    page,
    pair,
    same_weights,
)

from penstock.errors import OutOfMemory, UsageError
from penstock.paging import attach_training
from penstock.paging.training.loop import PLAIN_STEPS


def test_a_plain_loop_is_updated_in_backward_once_it_is_known():
    same(plain_step, in_backward=True)


def test_zero_grad_that_keeps_zeros():
    def loop(model, optimizer, n):
        loss = backward(model, n)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    same(loop, in_backward=True)


def halve_weights(model, optimizer, n):
    with torch.no_grad():
        model.head.weight.mul_(0.5)


def read_weights(model, optimizer, n):
    model.table.weight.norm()


def evaluate(model, optimizer, n):
    with torch.no_grad():
        model(DATA[0])


def set_rate(model, optimizer, n):
    optimizer.param_groups[0]["lr"] = 1e-3 * (n + 1)


def replace_gradient(model, optimizer, n):
    model.head.weight.grad = torch.ones_like(model.head.weight)


def drop_gradient(model, optimizer, n):
    model.layers[0].up.weight.grad = None


def give_a_gradient_other_data(model, optimizer, n):
    model.head.weight.grad.data = torch.ones_like(model.head.weight)


def exchange_gradients(model, optimizer, n):
    one, other = (layer.up.weight for layer in model.layers)
    one.grad, other.grad = other.grad, one.grad


BEFORE_THE_STEP = [
    halve_weights, read_weights, evaluate, set_rate, replace_gradient, drop_gradient,
    give_a_gradient_other_data, exchange_gradients,
]  # fmt: skip


@pytest.mark.parametrize("act", BEFORE_THE_STEP)
def test_what_a_loop_does_between_backward_and_step_comes_before_the_update(act):
    same(functools.partial(plain_step, before_step=act))


@pytest.mark.parametrize("act", BEFORE_THE_STEP)
def test_what_comes_too_late_for_an_update_in_backward_is_refused(act):
    _, model = pair(make)
    optimizer = adamw(model)
    refused = pytest.raises(UsageError, match=r"backward has updated \S+ already.*=False")
    with page(model, optimizer, chunks=8):
        for n in range(STEPS):
            backward(model, n)
            with refused if n > PLAIN_STEPS else contextlib.nullcontext():
                if n > PLAIN_STEPS:
                    act(model, optimizer, n)
                optimizer.step()
            if n > PLAIN_STEPS:
                break
            optimizer.zero_grad()


def test_a_hook_that_drops_a_gradient_it_has_seen():
    def loop(model, optimizer, n):
        if n == 0:
            weight = model.layers[0].up.weight
            weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        return plain_step(model, optimizer, n)

    same(loop)


def test_a_step_that_is_compiled():
    _, model = pair(make)
    plain, _ = pair(make)
    optimizers = adamw(plain), adamw(model)
    want = [plain_step(plain, optimizers[0], n) for n in range(4)]
    with page(model, optimizers[1], chunks=8):
        step = torch.compile(lambda: optimizers[1].step(), backend="eager")
        got = []
        for n in range(4):
            got.append(backward(model, n))
            step()
            optimizers[1].zero_grad()
        assert got == want
    assert same_weights(plain, model)


@pytest.mark.parametrize("foreach", [None, True])
def test_clip_grad_norm(foreach):
    def clip(model, optimizer, n):
        return nn.utils.clip_grad_norm_(model.parameters(), 0.05, foreach=foreach).item()

    same(functools.partial(plain_step, before_step=clip))


@pytest.mark.gpu
def test_clipping_on_a_gpu_gives_the_same_bits():
    """There it goes over lists of gradients by a kernel of its own."""
    plain = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).cuda()
    paged = copy.deepcopy(plain)
    first, second = adamw(plain), adamw(paged)
    with attach_training(paged, second, gpu_memory="512MiB"):
        for n in range(8):
            torch.manual_seed(n)
            rows = torch.randn(3, 1024, device="cuda")
            found = []
            for model, optimizer in ((plain, first), (paged, second)):
                model(rows).square().mean().backward()
                found.append(nn.utils.clip_grad_norm_(model.parameters(), 1e-3).item())
                optimizer.step()
                optimizer.zero_grad()
            assert found[0] == found[1]
    for name, value in plain.cpu().state_dict().items():
        assert torch.equal(value, paged.state_dict()[name].cpu()), name


def test_clip_grad_value_and_a_gradient_scaled_by_hand():
    def scale(model, optimizer, n):
        nn.utils.clip_grad_value_(model.parameters(), 0.001)
        model.layers[0].up.weight.grad *= 0.5
        model.layers[1].up.weight.grad.data[0].mul_(3)

    same(functools.partial(plain_step, before_step=scale))


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler(fused):
    scalers = {}

    def loop(model, optimizer, n):
        scaler = scalers.setdefault(id(model), torch.amp.GradScaler("cpu", init_scale=64.0))
        loss = loss_of(model, DATA[n])
        if n == 3:
            loss = loss * float("inf")  # the step is skipped, and the scale halved
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return str(norm.item()), scaler.get_scale()

    same(loop, functools.partial(adamw, fused=fused))


@in_a_thread
def test_grad_scaler_is_refused_before_an_update_where_gradients_are_not_kept():
    model = make()
    before = copy.deepcopy(model)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu")
    with (
        page(model, optimizer, step_in_backward=True),
        pytest.raises(UsageError, match="GradScaler"),
    ):
        scaler.scale(loss_of(model, DATA[0])).backward()
    assert same_weights(model, before)


def test_gradients_read_before_and_after_the_step():
    def loop(model, optimizer, n):
        loss = backward(model, n)
        norms = [p.grad.norm().item() for p in model.parameters()]
        optimizer.step()
        again = [p.grad.norm().item() for p in model.parameters()]
        optimizer.zero_grad()
        return loss, norms, again

    same(loop)


def test_a_gradient_that_outlives_zero_grad():
    kept = {}

    def keep(model, optimizer, n):
        last = kept.get(id(model))
        kept[id(model)] = model.layers[0].up.weight.grad
        return None if last is None else last.sum().item()

    same(functools.partial(plain_step, before_step=keep))


def test_two_backwards_and_one_step():
    def loop(model, optimizer, n):
        losses = [backward(model, 2 * n, 2), backward(model, 2 * n + 1, 2)]
        optimizer.step()
        optimizer.zero_grad()
        return losses

    same(loop)


def test_steps_that_are_skipped():
    def loop(model, optimizer, n):
        loss = backward(model, n)
        if n != 2:
            optimizer.step()
        optimizer.zero_grad()
        return loss

    same(loop)


def test_a_closure():
    def loop(model, optimizer, n):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, DATA[n])
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    same(
        loop,
        lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        in_backward=True,
    )


def test_hooks_of_the_optimizer_run_where_they_would():
    def optimizer(model):
        made = adamw(model)

        def clip(*_):
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)

        made.register_step_pre_hook(clip)
        return made

    same(plain_step, optimizer)


def test_hooks_of_parameters():
    def optimizer(model):
        model.layers[0].up.weight.register_hook(lambda grad: grad * 2)

        def halve(parameter):
            parameter.grad.mul_(0.5)

        model.layers[1].up.weight.register_post_accumulate_grad_hook(halve)
        return adamw(model)

    same(plain_step, optimizer, in_backward=True)


@in_a_thread
def test_what_is_no_longer_there_is_refused():
    def late(do):
        model = make()
        optimizer = adamw(model)
        with page(model, optimizer, chunks=8, step_in_backward=True):
            plain_step(model, optimizer, 0)
            backward(model, 1)
            with pytest.raises(UsageError, match="backward") as refused:
                do(model, optimizer)
            assert "step_in_backward=False" in refused.value.remedy

    late(lambda model, optimizer: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    late(lambda model, optimizer: model.layers[0].up.weight.grad.norm())
    late(lambda model, optimizer: backward(model, 2))
    late(lambda model, optimizer: (optimizer.zero_grad(), backward(model, 2)))  # a skipped step


@pytest.mark.parametrize("group", [False, True])
def test_layers_unfrozen_and_frozen_later(group):
    def optimizer(model):
        model.layers[0].requires_grad_(False)
        return torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad or not group], lr=3e-3
        )

    def loop(model, optimizer, n):
        if n == 3:
            model.layers[0].requires_grad_(True)
            if group:
                optimizer.add_param_group({"params": list(model.layers[0].parameters())})
        if n == 5:
            model.layers[1].requires_grad_(False)
        return plain_step(model, optimizer, n)

    same(loop, optimizer, in_backward=True)


def test_parameters_that_move_to_another_group():
    def optimizer(model):
        groups = [{"params": list(each.parameters()), "lr": 1e-3} for each in model.layers]
        groups[1]["lr"] = 1e-2
        groups[1]["params"].append(model.table.weight)
        return torch.optim.AdamW(groups)

    def loop(model, optimizer, n):
        groups = optimizer.param_groups
        if n == 3:  # the order of all parameters stays as it is
            groups[0]["params"].append(groups[1]["params"].pop(0))
        if n == 5:
            optimizer.param_groups = [
                {**groups[0], "params": [p for g in groups for p in g["params"]]}
            ]
        return plain_step(model, optimizer, n)

    same(loop, optimizer, in_backward=True)


def test_a_parameter_that_was_replaced_is_refused():
    model = make()
    optimizer = adamw(model)
    with page(model, optimizer, chunks=8):
        plain_step(model, optimizer, 0)
        kept = model.layers[0].up.bias
        model.layers[0].up.bias = nn.Parameter(torch.zeros_like(kept))
        with pytest.raises(UsageError, match=r"layers\.0\.up\.bias was replaced"):
            plain_step(model, optimizer, 1)
        model.layers[0].up.bias = kept
        plain_step(model, optimizer, 2)


@pytest.mark.parametrize("first", [False, True])
def test_two_optimizers_over_one_model(first):
    plain, paged = pair(make)

    def optimizers(model):
        return (
            torch.optim.AdamW(model.layers.parameters(), lr=3e-3),
            torch.optim.SGD(model.table.parameters(), lr=0.1, momentum=0.9),
        )

    def run(model, one, other):
        losses = []
        for n in range(STEPS):
            losses.append(backward(model, n))
            for each in (other, one) if first else (one, other):
                each.step()
                each.zero_grad()
        return losses

    want = run(plain, *optimizers(plain))
    one, other = optimizers(paged)
    with page(paged, one, chunks=8):
        assert run(paged, one, other) == want
    assert same_weights(plain, paged)


def test_weights_read_and_changed_between_steps():
    averages = {}

    def loop(model, optimizer, n):
        loss = plain_step(model, optimizer, n)
        with torch.no_grad():
            mine = averages.setdefault(id(model), [p.clone() for p in model.parameters()])
            for average, p in zip(mine, model.parameters(), strict=True):
                average.lerp_(p, 0.5)
            torch._foreach_mul_(list(model.parameters()), 0.99)
            model.layers[0].up.weight.data.clamp_(-0.05, 0.05)
        return loss, [average.sum().item() for average in mine]

    same(loop, in_backward=True)


def test_weights_used_before_the_first_forward_and_by_another_module():
    model = make()
    optimizer = adamw(model)
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    other = nn.Linear(first.in_features, first.out_features)
    other.weight = first.weight
    x = torch.randn(2, first.in_features)
    with torch.no_grad():
        want = [parameter.norm() for parameter in model.parameters()], other(x)
    with page(model, optimizer), torch.no_grad():
        got = [parameter.norm() for parameter in model.parameters()], other(x)
    assert all(torch.equal(a, b) for a, b in zip(want[0], got[0], strict=True))
    assert torch.equal(want[1], got[1])


def test_an_average_of_the_weights_by_torch():
    made = {}

    def loop(model, optimizer, n):
        loss = plain_step(model, optimizer, n)
        if id(model) not in made:
            made[id(model)] = torch.optim.swa_utils.AveragedModel(make(), use_buffers=False)
        made[id(model)].update_parameters(model)
        return loss, [p.sum().item() for p in made[id(model)].parameters()]

    same(loop, in_backward=True)


@pytest.mark.parametrize("before", [False, True])
def test_schedulers_made_before_and_after_attaching(before, recwarn):
    plain, paged = pair(make)

    def scheduler(optimizer):
        return torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)

    def run(model, optimizer, schedule):
        losses = []
        for n in range(STEPS):
            losses.append(plain_step(model, optimizer, n))
            schedule.step()
        return losses

    one, other = adamw(plain), adamw(paged)
    want = run(plain, one, scheduler(one))
    schedule = scheduler(other) if before else None
    attached = page(paged, other, chunks=8)
    schedule = schedule or scheduler(other)
    assert run(paged, other, schedule) == want
    attached.detach()
    assert plain_step(plain, one, 0) == plain_step(paged, other, 0)
    assert same_weights(plain, paged)
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]


def test_a_budget_that_is_too_small_says_how_much_is_needed():
    model = make()
    optimizer = adamw(model)
    with pytest.raises(OutOfMemory) as refused:
        page(model, optimizer, gpu_memory=GRANULE)
    budget = refused.value.needed_bytes
    # What is named is what was needed by then: each budget comes some operators further, as tensors
    # count here, of which a step makes 600 KiB in pieces of 18 to 112.
    for _ in range(20):
        with page(model, optimizer, gpu_memory=budget):
            try:
                plain_step(model, optimizer, 0)
                return
            except OutOfMemory as error:
                assert error.needed_bytes > budget == error.budget_bytes
                remedy = f'gpu_memory="{-(-error.needed_bytes // 1024)}KiB" or more'
                if error.what.startswith("an operator made"):
                    remedy = "a smaller input, or a larger gpu_memory"
                assert error.remedy == remedy
                budget = error.needed_bytes
    pytest.fail("the numbers lead nowhere")


class Wandering(Tower):
    """Reads another layer's weight with each batch."""

    def forward(self, ids):
        weight = self.layers[int(ids.sum()) % 2].up.weight
        return super().forward(ids) + 0.1 * weight.square().sum()


def test_a_module_that_reads_another_weight_with_each_batch():
    def run(model, optimizer):
        return [plain_step(model, optimizer, n) for n in range(STEPS)]

    assert len({int(ids.sum()) % 2 for ids in DATA[:STEPS]}) == 2
    both_ways(drawn(Wandering, layers=2), run, chunks=8)
