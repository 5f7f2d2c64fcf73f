# SPDX-License-Identifier: Apache-2.0
"""attach_training() with optimizers that nobody here knows: right, or refused."""

from __future__ import annotations

import pytest
import torch
from training_both import STEPS, backward, make, plain_step, same
from training_tower import adamw, page, pair

from penstock.errors import UsageError


class GlobalNorm(torch.optim.Optimizer):
    """Divides by the norm of all gradients."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        if params:
            norm = torch.stack([p.grad.norm() for p in params]).norm()
            for p in params:
                p.add_(p.grad / norm, alpha=-self.param_groups[0]["lr"])


class Counting(torch.optim.Optimizer):
    """Its steps are shorter with every call."""

    def __init__(self, params):
        super().__init__(params, {})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            p.add_(p.grad, alpha=-0.1 / self.calls)


class Adapting(torch.optim.Optimizer):
    """Its steps grow, by a number of all gradients, too slowly for small weights to show it."""

    def __init__(self, params):
        super().__init__(params, {"size": 1e-6})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            some = [p for p in group["params"] if p.grad is not None]
            for p in some:
                p.add_(p.grad.sign(), alpha=-group["size"])
            group["size"] *= 1 + 1e-4 * float(sum(p.grad.abs().sum() for p in some))


class Momentum(torch.optim.Optimizer):
    """An optimizer that nobody here knows, which updates each parameter by itself."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    buffer = self.state[p].setdefault("buffer", torch.zeros_like(p))
                    p.add_(buffer.mul_(0.9).add_(p.grad), alpha=-group["lr"])


@pytest.mark.parametrize("kind", [GlobalNorm, Counting, Adapting])
@pytest.mark.parametrize("in_backward", [None, False])
def test_optimizers_that_need_all_gradients_at_once_are_refused(kind, in_backward):
    model = make()
    with pytest.raises(UsageError, match=f"{kind.__name__} needs all parameters and gradients"):
        page(model, kind(model.parameters()), step_in_backward=in_backward)


class Rounding(Momentum):
    """Rounds otherwise where it has a list of several."""

    def __init__(self, params, foreach=None):
        super().__init__(params)
        for group in self.param_groups:
            group["foreach"] = foreach

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            some = [p for p in group["params"] if p.grad is not None]
            if len(some) > 1 and group["foreach"] is not False:
                torch._foreach_mul_(some, 1 + 1e-4)


def test_an_optimizer_that_rounds_lists_otherwise_says_how_it_does_not():
    with pytest.raises(UsageError, match="Rounding needs all") as refused:
        page(model := make(), Rounding(model.parameters()))
    assert refused.value.remedy.startswith("foreach=False")
    same(plain_step, lambda model: Rounding(model.parameters(), foreach=False), in_backward=True)


def test_an_optimizer_that_fails_when_it_is_tried_says_what_it_asks_for():
    class Modes(Momentum):
        def step(self, closure=None):
            raise RuntimeError("call train() first")

    model = make()
    with pytest.raises(UsageError, match=r"call train.*try: what that error asks for"):
        page(model, Modes(model.parameters()))


class CountsInGroups(torch.optim.Optimizer):
    """Steps by what its groups count: in a number, in a tensor, and from the first step on."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05, "k": 0, "count": torch.zeros(())})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            group["count"] += 1
            group["since"] = group.get("since", 0.0) + group["lr"]
            some = [p for p in group["params"] if p.grad is not None]
            if not some:
                continue
            group["used"] = group.get("used", 0) + 1
            for p in some:
                p.add_(p.grad, alpha=-group["lr"] / (group["k"] + float(group["count"])))
                p.mul_(1 - 0.01 / group["used"] - 0.01 * group["since"])


def counts(optimizer):
    keys = ("k", "count", "since", "used")
    return [[float(group[key]) for key in keys] for group in optimizer.param_groups]


@pytest.mark.parametrize("in_backward", [None, True, False])
def test_a_step_in_pieces_counts_once_in_the_groups(in_backward):
    def counting(model):
        matrices = [p for p in model.parameters() if p.dim() == 2]
        rest = [p for p in model.parameters() if p.dim() < 2]
        return CountsInGroups([{"params": matrices}, {"params": rest, "lr": 0.02}])

    made = []

    def optimizer(model):
        made.append(counting(model))
        return made[-1]

    moves = in_backward is not False
    # A small budget: weights alone page, as there is no state.
    same(plain_step, optimizer, chunks=-4, in_backward=moves, step_in_backward=in_backward)
    assert counts(made[0]) == counts(made[1])
    assert made[0].param_groups[0]["k"] == STEPS


def test_a_step_without_gradients_counts_too():
    first, second = pair(make)
    optimizers = [CountsInGroups(model.parameters()) for model in (first, second)]
    plain_step(first, optimizers[0], 0)
    optimizers[0].step()
    with page(second, optimizers[1], chunks=8):
        plain_step(second, optimizers[1], 0)
        optimizers[1].step()
    assert counts(optimizers[0]) == counts(optimizers[1])


class OfAll(torch.optim.Optimizer):
    """Has state of all parameters together, which its step does not change."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})
        self.state["all"] = {"scale": 0.5}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] * self.state["all"]["scale"])


def test_state_of_all_parameters_together_is_given_and_taken():
    def loop(model, optimizer, n):
        optimizer.load_state_dict(optimizer.state_dict())
        return plain_step(model, optimizer, n)

    same(loop, lambda model: OfAll(model.parameters()), steps=4)


def test_an_optimizer_of_the_users_own():
    same(plain_step, lambda model: Momentum(model.parameters()), in_backward=True)


def taken_out(number):
    """A loop that takes parameters out of the optimizer between backward and step()."""

    def loop(model, optimizer, n):
        loss = backward(model, n)
        if n == number:
            for _ in range(3):
                optimizer.state.pop(optimizer.param_groups[0]["params"].pop(1))
        optimizer.step()
        model.zero_grad()
        return loss

    return loop


def test_a_parameter_that_is_taken_out_behind_backward_is_not_updated():
    same(taken_out(3), adamw, in_backward=True)


def test_a_parameter_that_is_taken_out_when_backward_has_updated_it():
    model = make()
    optimizer, loop = adamw(model), taken_out(STEPS - 1)
    with page(model, optimizer, chunks=8):
        for n in range(STEPS - 1):
            loop(model, optimizer, n)
        with pytest.raises(UsageError, match="a parameter taken out of the groups"):
            loop(model, optimizer, STEPS - 1)


def test_a_parameter_that_moves_to_another_group_when_backward_has_updated_it():
    model = make()
    optimizer = torch.optim.AdamW([{"params": list(each.parameters())} for each in model.layers])
    with page(model, optimizer, chunks=8):
        for n in range(STEPS):
            plain_step(model, optimizer, n)
        backward(model, STEPS)
        groups = optimizer.param_groups
        groups[0]["params"].append(groups[1]["params"].pop(0))
        with pytest.raises(UsageError, match="a move to another group"):
            optimizer.step()
