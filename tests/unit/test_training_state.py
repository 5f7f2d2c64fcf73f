# SPDX-License-Identifier: Apache-2.0
"""attach_training(): optimizer state that is there before, of any type, made of any tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from training_tower import (
    adamw,
    batches,
    drawn,
    loss_of,
    page,
    pair,
    same_state,
    same_weights,
    train,
)

from penstock.errors import OutOfMemory, UsageError


def test_state_of_another_type_than_its_parameter_is_kept():
    """fp32 momentum of a model that was made bfloat16 after its first steps."""

    def momentum(model):
        return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    plain, paged = pair()
    first, second = momentum(plain), momentum(paged)
    for model, optimizer in ((plain, first), (paged, second)):
        train(model, optimizer, batches(3))
        model.bfloat16()
    want = train(plain, first, batches(3))
    with page(paged, second) as attached:
        assert train(paged, second, batches(3)) == want
        assert attached.stats().bytes_out > 0
        kept = second.state_dict()["state"][1]["momentum_buffer"]
        assert kept.dtype == torch.float32
        assert not torch.equal(kept, kept.bfloat16())
        assert same_state(first, second)
    assert same_weights(plain, paged)


def test_what_is_loaded_has_the_parameters_type_as_in_torch():
    plain, paged = pair()
    first = adamw(plain)
    train(plain, first, batches(3))
    saved = copy.deepcopy(first.state_dict())
    plain.bfloat16()
    paged.load_state_dict(plain.state_dict())
    paged.bfloat16()
    first, second = adamw(plain), adamw(paged)
    first.load_state_dict(copy.deepcopy(saved))
    want = train(plain, first, batches(3))
    with page(paged, second):
        second.load_state_dict(copy.deepcopy(saved))
        assert train(paged, second, batches(3)) == want
        assert same_state(first, second)


def test_a_state_dict_from_before_keeps_what_it_had():
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    train(plain, first, batches(2))
    train(paged, second, batches(2))
    before = second.state_dict()
    expected = copy.deepcopy(before)["state"]
    with page(paged, second):
        train(paged, second, batches(3))
        for number, values in before["state"].items():
            for key, value in values.items():
                assert torch.equal(value, expected[number][key]), key
        second.load_state_dict(before)
        assert same_state(first, second)


class Halved(torch.optim.Optimizer):
    """Momentum whose state is made of two tensors, the second half as large as the first."""

    kind = TwoTensor

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = self.kind(torch.zeros_like(p), torch.zeros_like(p))
                state["momentum"].mul_(0.9).add_(p.grad)
                state["momentum"].b.mul_(0.5)
                p.sub_(state["momentum"].a + state["momentum"].b, alpha=group["lr"])


def parts(state_dict):
    values = [state["momentum"] for state in state_dict["state"].values()]
    return [half for value in values for half in (value.a, value.b)]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 2], ids=["made while attached", "there before"])
def test_state_made_of_several_tensors(steps):
    plain, paged = pair()
    first, second = Halved(plain.parameters()), Halved(paged.parameters())
    want = train(plain, first, batches(steps))
    assert train(paged, second, batches(steps)) == want
    want = train(plain, first, batches(12))
    with page(paged, second, chunks=22) as attached:
        assert train(paged, second, batches(12)) == want
        stats = attached.stats()
        assert stats.state_bytes == 2 * stats.trained_bytes > 0
        assert all(map(torch.equal, parts(first.state_dict()), parts(second.state_dict())))
        saved = copy.deepcopy(second.state_dict())
        want = train(plain, first, batches(2))
        assert train(paged, second, batches(2)) == want
        train(paged, second, batches(1))
        second.load_state_dict(saved)
    assert all(isinstance(state["momentum"], TwoTensor) for state in second.state.values())
    assert all(map(torch.equal, parts(second.state_dict()), parts(saved)))


def test_another_librarys_step_sees_no_mode_of_ours():
    """It may be compiled as a whole, which PyTorch does under no mode."""

    seen = []

    class Looks(Halved):
        def step(self):
            seen.append(_get_current_dispatch_mode())
            super().step()

    model, _ = pair()
    optimizer = Looks(model.parameters())
    with page(model, optimizer, safety="strict"):
        seen.clear()
        train(model, optimizer, batches(3))
    assert seen
    assert set(seen) == {None}


class Opaque(torch.Tensor):
    """A subclass with a storage, and something else that it does not tell."""


def test_state_of_a_kind_that_cannot_be_moved_is_refused():
    class Strange(Halved):
        @torch.no_grad()
        def step(self):
            for p in (p for group in self.param_groups for p in group["params"]):
                self.state[p].setdefault("odd", torch.zeros_like(p).as_subclass(Opaque))

    model, _ = pair()
    optimizer = Strange(model.parameters())
    with (
        page(model, optimizer),
        pytest.raises(UsageError, match=r"state 'odd' of .*weight cannot be paged: a Opaque"),
    ):
        train(model, optimizer, batches(1))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 12])  # before and after updates go with backward
def test_state_is_read_and_changed_between_steps(steps):
    def look(model, optimizer):
        states = [optimizer.state[p] for p in model.parameters()]
        found = [state["exp_avg_sq"].sum().item() for state in states]
        norms = torch._foreach_norm([state["exp_avg"] for state in states])
        torch._foreach_mul_([state["exp_avg"] for state in states], 0.5)
        weights = [p.detach() for p in model.parameters()]
        torch._foreach_lerp_(weights, [state["exp_avg"] for state in states], 0.01)
        torch._foreach_maximum_(
            *([state[key] for state in states] for key in ("exp_avg_sq", "exp_avg"))
        )
        states[2]["exp_avg_sq"][0].clamp_(min=1e-3)
        return found, [norm.item() for norm in norms]

    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    with page(paged, second, chunks=40) as attached:
        for _ in range(2):
            assert train(paged, second, batches(steps)) == train(plain, first, batches(steps))
            assert look(paged, second) == look(plain, first)
        assert attached.stats().bytes_in > 0
        assert train(paged, second, batches(2)) == train(plain, first, batches(2))
        assert same_state(first, second)
    assert same_weights(plain, paged)


def test_state_made_of_several_tensors_is_read_between_steps():
    def look(model, optimizer):
        values = [optimizer.state[p]["momentum"] for p in model.parameters()]
        sums = [(value + value).a.sum().item() for value in values]
        values[0].mul_(0.5)
        return sums, [value.b.norm().item() for value in values]

    plain, paged = pair()
    first, second = Halved(plain.parameters()), Halved(paged.parameters())
    with page(paged, second, chunks=22):
        assert train(paged, second, batches(3)) == train(plain, first, batches(3))
        assert look(paged, second) == look(plain, first)
        assert train(paged, second, batches(3)) == train(plain, first, batches(3))
    assert same_weights(plain, paged)


def exchanges(state):
    state["exp_avg"], state["exp_avg_sq"] = state["exp_avg_sq"], state["exp_avg"].abs_()


def is_made_anew(state):
    state["exp_avg"] = torch.ones_like(state["exp_avg"])


def has_other_data(state):
    state["exp_avg"].data = torch.ones_like(state["exp_avg"])


@pytest.mark.parametrize("change", [dict.clear, exchanges, is_made_anew, has_other_data])
@pytest.mark.parametrize("then", ["saves", "detaches", "steps"])
def test_state_that_the_program_puts_elsewhere(change, then):
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    with page(paged, second, chunks=16) as attached:
        for n in range(2):
            assert train(plain, first, batches(3)) == train(paged, second, batches(3))
            for optimizer in (first, second):
                states = list(optimizer.state.values())
                if change is dict.clear:
                    optimizer.state.clear()
                else:
                    for state in states:
                        change(state)
            if then == "saves":
                assert same_state(first, second)
            if then == "detaches" and n:
                attached.detach()
                assert same_state(first, second)
        assert train(plain, first, batches(3)) == train(paged, second, batches(3))
        assert same_state(first, second)
    assert same_weights(plain, paged)
    assert same_state(first, second)


def states(states, first, second):
    states[first], states[second] = states[second], states[first]


def averages(states, first, second):
    first, second = states[first], states[second]
    first["exp_avg"], second["exp_avg_sq"] = second["exp_avg_sq"], first["exp_avg"].abs_()


@pytest.mark.parametrize("exchange", [states, averages])
@pytest.mark.parametrize("in_backward", [None, True])
def test_state_is_exchanged_between_parameters(exchange, in_backward):
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    with page(paged, second, chunks=16, step_in_backward=in_backward):
        for _ in range(3):
            assert train(plain, first, batches(2)) == train(paged, second, batches(2))
            for model, optimizer in ((plain, first), (paged, second)):
                layers = model.layers
                exchange(optimizer.state, layers[0].up.weight, layers[3].up.weight)
        assert same_state(first, second)
    assert same_weights(plain, paged)


def share_state(model, optimizer):
    first, second = model.layers[0].up.weight, model.layers[3].up.weight
    optimizer.state[first] = optimizer.state[second]


def test_parameters_that_share_state_are_updated_in_their_order():
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    with page(paged, second, chunks=16):
        assert train(plain, first, batches(2)) == train(paged, second, batches(2))
        share_state(plain, first)
        share_state(paged, second)
        assert train(plain, first, batches(12)) == train(paged, second, batches(12))
        assert same_state(first, second)
    assert same_weights(plain, paged)


def test_parameters_that_share_state_cannot_be_updated_in_backward():
    _, paged = pair()
    optimizer = adamw(paged)
    with page(paged, optimizer, chunks=16, step_in_backward=True):
        train(paged, optimizer, batches(2))
        share_state(paged, optimizer)
        with pytest.raises(UsageError, match=r"share state.*step_in_backward=False"):
            train(paged, optimizer, batches(2))


def test_state_that_is_replaced_stays_as_it_was_with_who_kept_it():
    plain, paged = pair()
    first, second = adamw(plain), adamw(paged)
    with page(paged, second, chunks=16):
        kept = []
        for model, optimizer in ((plain, first), (paged, second)):
            train(model, optimizer, batches(2))
            kept.append([state["exp_avg"] for state in optimizer.state.values()])
            for state in optimizer.state.values():
                state["exp_avg"] = state["exp_avg"] * 0.5
            train(model, optimizer, batches(2))
        assert all(x.sum() == y.sum() for x, y in zip(*kept, strict=True))
        assert same_state(first, second)
        del kept


class Exchanging(torch.optim.Optimizer):
    """Each step finds in one what the last one wrote in the other; a list has two more."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["a"], state["b"], *state["more"] = (
                    torch.zeros_like(parameter) for _ in range(4)
                )
            for n, each in enumerate((state["a"], state["b"], *state["more"])):
                each.mul_(0.2 * n).add_(parameter.grad)
                parameter.sub_(each, alpha=1e-2)
            state["a"], state["b"] = state["b"], state["a"]


def exchanging():
    models = pair()
    return models, [Exchanging(model.parameters()) for model in models]


def test_an_optimizer_that_exchanges_its_state():
    (plain, paged), (first, second) = exchanging()
    with page(paged, second, chunks=16) as attached:
        assert train(plain, first, batches(5)) == train(paged, second, batches(5))
        assert attached.stats().state_bytes > 0
    assert same_weights(plain, paged)


def test_state_in_lists_is_brought_along(monkeypatch):
    (plain, paged), (first, second) = exchanging()

    def listed():
        return {id(each): each for state in second.state.values() for each in state["more"]}

    train(plain, first, batches(2))
    train(paged, second, batches(2))
    before, brought, cpu = listed(), set(), torch.Tensor.cpu
    with page(paged, second, chunks=16) as attached:
        assert before.keys().isdisjoint(listed())
        assert train(plain, first, batches(2)) == train(paged, second, batches(2))
        after = listed()
        monkeypatch.setattr(torch.Tensor, "cpu", lambda x: brought.add(id(x)) or cpu(x))
        attached.detach()
    assert after.keys() <= brought
    assert train(plain, first, batches(2)) == train(paged, second, batches(2))
    assert same_weights(plain, paged)


def test_where_the_host_cannot_hold_the_state_all_is_as_before():
    plain, model = pair()
    optimizers = adamw(plain), adamw(model)
    assert train(plain, optimizers[0], batches(1)) == train(model, optimizers[1], batches(1))
    weights = sum(parameter.nbytes for parameter in model.parameters())
    with pytest.raises(OutOfMemory, match="page-locked"):
        page(model, optimizers[1], host_memory=int(1.5 * weights), chunks=40)
    assert train(plain, optimizers[0], batches(2)) == train(model, optimizers[1], batches(2))
    assert same_weights(plain, model)
    assert same_state(*optimizers)


class Wrapper(torch.optim.Optimizer):
    """Steps another, as those that average weights do."""

    def __init__(self, other):
        self.param_groups, self.state, self.defaults = other.param_groups, other.state, {}
        self.other = other

    def step(self, closure=None):
        self.other.step(closure)


def test_a_wrapper_around_an_optimizer_is_refused():
    model = drawn()
    with pytest.raises(UsageError, match=r"Wrapper is not a .* hand over the optimizer itself"):
        page(model, Wrapper(adamw(model)))


def test_copies_that_a_step_makes_of_weights_are_the_hosts():
    """More of them than the budget would hold."""
    model = drawn()
    optimizer = adamw(model)
    with page(model, optimizer, chunks=8) as attached:
        train(model, optimizer, batches(1))
        loss_of(model, batches(1)[0]).backward()
        saved = [model.state_dict() for _ in range(4)]
        assert 4 * attached.weight_bytes > attached.budget
        optimizer.step()
    assert all(torch.equal(value, saved[-1][key]) for key, value in saved[0].items())
