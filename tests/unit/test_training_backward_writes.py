# SPDX-License-Identifier: Apache-2.0
"""Weights that the program itself updates in backward, beside those of the attached optimizer."""

from __future__ import annotations

import functools

import pytest
import torch
from training_both import STEPS, make, plain_step
from training_tower import GRANULE, page, pair, same_weights


def by_operator(parameter):
    with torch.no_grad():
        parameter.add_(parameter.grad, alpha=-0.05)
    parameter.grad = None


def by_data(parameter):
    parameter.data.add_(parameter.grad, alpha=-0.05)
    parameter.grad = None


@pytest.mark.parametrize("in_backward", [None, True, False])
@pytest.mark.parametrize("change", [by_operator, by_data])
def test_what_hooks_update_of_what_the_optimizer_does_not_have(change, in_backward):
    plain, paged = pair(make)

    def prepare(model):
        for parameter in model.layers[0].parameters():
            parameter.register_post_accumulate_grad_hook(change)
        rest = [*model.layers[1].parameters(), model.head.weight]
        return torch.optim.AdamW(rest, lr=3e-3)

    first, second = prepare(plain), prepare(paged)
    want = [plain_step(plain, first, n) for n in range(STEPS)]
    with page(paged, second, gpu_memory=22 * GRANULE, step_in_backward=in_backward) as attached:
        assert [plain_step(paged, second, n) for n in range(STEPS)] == want
        assert attached.stats().iteration_bytes_in > 0
    assert same_weights(plain, paged)


def test_a_hook_of_a_gradient_that_changes_its_weight_where_gradients_are_kept():
    plain, paged = pair(make)

    def shrink(parameter, gradient):
        with torch.no_grad():
            parameter.mul_(0.9)

    def prepare(model):
        for parameter in model.layers.parameters():
            parameter.register_hook(functools.partial(shrink, parameter))
        return torch.optim.SGD(model.parameters(), lr=0.05)

    first, second = prepare(plain), prepare(paged)
    want = [plain_step(plain, first, n) for n in range(STEPS)]
    with page(paged, second, gpu_memory=22 * GRANULE, step_in_backward=False):
        assert [plain_step(paged, second, n) for n in range(STEPS)] == want
    assert same_weights(plain, paged)
