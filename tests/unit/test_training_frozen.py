# SPDX-License-Identifier: Apache-2.0
"""A model of which nothing is trained: gradients go through it, to what goes in."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from training_tower import WIDTH, Layer, both_ways, drawn

from penstock.paging.training.loop import PLAIN_STEPS

STEPS = PLAIN_STEPS + 4


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(6))
        self.register_buffer("shift", torch.randn(WIDTH))
        self.requires_grad_(False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x + self.shift


class Given(torch.optim.Adam):
    """Over what goes in, which both ways begin with alike."""

    def __init__(self, model):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(4, 12, WIDTH, generator=generator, requires_grad=True)
        super().__init__([self.x], lr=0.1)


def trained(model, optimizer, n):
    loss = model(optimizer.x).square().mean()
    loss.backward()
    gradient = optimizer.x.grad.tolist()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), gradient


def guided(model, optimizer, n):
    """Without a step of the optimizer."""
    x = optimizer.x.detach().requires_grad_()
    loss = model(x).square().mean() + model(x + 1).square().mean()
    (gradient,) = torch.autograd.grad(loss, x)
    with torch.no_grad():
        optimizer.x -= 0.1 * gradient
    return loss.item(), gradient.tolist()


@pytest.mark.parametrize("step", [trained, guided])
@pytest.mark.parametrize("more", [{}, {"step_in_backward": True}, {"safety": "strict"}])
def test_what_goes_in_is_trained(small_blocks, step, more):
    def run(model, optimizer):
        return [step(model, optimizer, n) for n in range(STEPS)]

    stats = both_ways(drawn(Trunk), run, Given, chunks=6, **more)
    assert stats.plans > 0
    assert stats.iteration_page_loads > 0
    assert stats.bytes_out == 0
