# SPDX-License-Identifier: Apache-2.0
"""Weights that backward uses once more when their gradients are whole, which it sees as before."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training_both import CHUNKS, DATA, backward, make
from training_tower import Tower, adamw, both_ways, drawn, learn, loss_of, page, pair, same_weights

from penstock.errors import UsageError
from penstock.paging.training.loop import PLAIN_STEPS

WIDTH = 64
STEPS = PLAIN_STEPS + 4


class Late(nn.Module):
    """A stack, before which the last layer's weight is used in a way that gives it no gradient."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])

    def forward(self, x):
        x = self.layers[0](x)
        return self.layers(self.way(x, self.layers[3]).tanh())


def detached(x, layer):
    return F.linear(x, layer.weight.detach())


def computed_again(x, layer):
    return checkpoint(lambda x: detached(x, layer).square(), x, use_reentrant=False)


def hooked(x, layer):
    x.register_hook(lambda gradient: gradient + layer.weight.detach()[:1])
    return x * 2


class Adds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient + ctx.layer.weight.detach()[:1], None


WAYS = [detached, computed_again, hooked, Adds.apply]


class Regions(nn.Module):
    """Reentrant regions that share a weight: each has a backward of its own, which adds to it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(self.region, x, layer, use_reentrant=True)
        return self.layers[1](x)

    def region(self, x, layer):
        return torch.tanh(layer(x)) + F.linear(x, self.layers[0].weight)


def steps(model, optimizer, count=STEPS):
    losses = []
    for n in range(count):
        x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(n))
        loss = model(x.requires_grad_()).square().mean()
        losses.append(learn(optimizer, loss))
    return losses


@pytest.mark.parametrize("way", [*WAYS, None])
def test_what_is_used_late_is_updated_at_the_end_of_backward(way):
    def check(attached):
        late = {unit.name for unit in attached._units if unit.late}
        assert late == ({"layers.0", "layers.1"} if way is None else {"layers.3"})

    model = drawn(Regions if way is None else lambda: Late(way))
    assert both_ways(model, steps, meanwhile=check).updates_in_backward


@pytest.mark.parametrize("way", WAYS[1:])  # the first is PyTorch's error
def test_where_it_was_to_be_updated_from_the_beginning_is_an_error(way):
    model = Late(way)
    optimizer = adamw(model)
    with (
        page(model, optimizer, step_in_backward=True),
        pytest.raises(UsageError, match=r"a use of weights in backward.*layers\.3"),
    ):
        steps(model, optimizer, 1)


def whole_graph_again(loss, inner):
    loss.backward(retain_graph=True)
    loss.backward()


def gradients_of_an_input(loss, inner):
    loss.backward(retain_graph=True)
    torch.autograd.grad(loss, inner)


@pytest.mark.parametrize("again", [whole_graph_again, gradients_of_an_input])
@pytest.mark.parametrize("first", [0, PLAIN_STEPS + 2])
def test_another_backward_over_the_same_graph_says_so(again, first):
    """To PyTorch, updates in backward are changes of weights in place, whose author to look for."""
    _, model = pair(make)
    seen = []
    model.layers[0].register_forward_hook(lambda module, given, out: seen.append(out))
    optimizer = adamw(model)
    with page(model, optimizer, chunks=CHUNKS, step_in_backward=None if first else True):
        for n in range(first):
            backward(model, n)
            optimizer.step()
            optimizer.zero_grad()
        loss = loss_of(model, DATA[first])
        with pytest.raises(UsageError, match=r"the same graph.*updated \S+ already.*accumulate"):
            again(loss, seen[-1])
        seen.clear()


class Reads(Tower):
    """From some step on it uses weights of layers that have run, or that it has kept."""

    def __init__(self, first, how):
        super().__init__(layers=3)
        self.first, self.how = first, how
        self.kept, self.passes = [], 0

    def forward(self, ids):
        logits = super().forward(ids)
        for weight in self.kept:
            logits = logits + weight.mean()
        self.passes += 1
        if self.passes == self.first and self.how == "kept":
            self.kept = [layer.down.weight for layer in self.layers]
        if self.passes >= self.first and self.how == "read":
            up = self.layers[1].up
            logits = logits + F.linear(logits[..., : up.in_features], up.weight).mean()
        return logits


@pytest.mark.parametrize("how", ["kept", "read"])
@pytest.mark.parametrize("first", [3, STEPS - 2])
def test_forward_uses_weights_elsewhere_later_for_the_first_time(how, first):
    def run(model, optimizer):
        return [learn(optimizer, loss_of(model, ids)) for ids in DATA[:STEPS]]

    both_ways(drawn(lambda: Reads(first, how)), run, chunks=24)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("in_backward", [None, False])
def test_a_hook_reads_weights_later_for_the_first_time(kept, in_backward):
    """Where updates are in backward, before the weight's own."""

    def run(model, optimizer):
        seen = []
        for n, ids in enumerate(DATA[:STEPS]):
            loss = loss_of(model, ids)
            if n > PLAIN_STEPS:
                up = model.layers[0].up
                weight = up.weight if kept else None
                loss.register_hook(
                    lambda _, up=up, weight=weight: seen.append(
                        (up.weight if weight is None else weight).norm().item()
                    )
                )
            seen.append(learn(optimizer, loss))
        return seen

    both_ways(drawn(make), run, chunks=CHUNKS, step_in_backward=in_backward)


class Branches(nn.Module):
    """Two stacks, side by side."""

    def __init__(self):
        super().__init__()
        self.stacks = nn.ModuleList(
            nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)]) for _ in range(2)
        )

    def forward(self, x):
        return [stack(x) for stack in self.stacks]


@pytest.mark.parametrize("first", [0, PLAIN_STEPS + 1])
def test_branches_of_a_graph_may_be_gone_back_one_after_the_other(first):
    def step(model, optimizer, n):
        generator = torch.Generator().manual_seed(n)
        losses = [y.square().mean() for y in model(torch.randn(2, WIDTH, generator=generator))]
        if n < first:
            sum(losses).backward()
        else:
            for loss in losses:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return [loss.item() for loss in losses]

    plain, paged = pair(Branches)
    optimizers = adamw(plain), adamw(paged)
    want = [step(plain, optimizers[0], n) for n in range(STEPS)]
    with page(paged, optimizers[1], chunks=-14, step_in_backward=None if first else True) as at:
        assert [step(paged, optimizers[1], n) for n in range(STEPS)] == want
        assert at.stats().iteration_page_loads > 0
    assert same_weights(plain, paged)
