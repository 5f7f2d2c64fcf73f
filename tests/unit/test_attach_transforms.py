# SPDX-License-Identifier: Apache-2.0
"""Attached models within torch.func's transforms and higher-order operators, on nested tensors."""

from __future__ import annotations

import pytest
import torch
from attach_models import WIDTH, page, rows, stack, with_reference
from torch import func, nn
from torch.nn.attention.flex_attention import flex_attention

HEADS = 4

pytestmark = pytest.mark.usefixtures("no_grad")


def mapped(model):
    return func.vmap(model)(rows())


def pushed_forward(model):
    return func.jvp(model, (rows(),), (rows(seed=1),))[1]


def jacobian(model):
    return func.jacfwd(model)(rows(1)[0, :])


@pytest.mark.parametrize("safety", ["normal", "strict"])
@pytest.mark.parametrize("transformed", [mapped, pushed_forward, jacobian])
def test_transformed_passes(transformed, safety):
    model, reference = with_reference(stack())
    with page(model, 110, safety=safety):
        for _ in range(3):
            assert torch.equal(transformed(model), transformed(reference))


def test_weights_read_before_a_transformed_pass():
    model, reference = with_reference(stack())
    with page(model, 110):
        model(rows())
        model[3].weight.mul_(2)
        reference[3].weight.mul_(2)
        assert torch.equal(jacobian(model), jacobian(reference))


class Flexible(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            q, k, v = layer(x).view(1, len(x), 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            x = flex_attention(q, k, v).transpose(1, 2).reshape(len(x), WIDTH)
        return x


@pytest.mark.parametrize("safety", ["normal", "strict"])
def test_flex_attention(safety):
    model, reference = with_reference(Flexible())
    with page(model, 110, safety=safety):
        for _ in range(3):
            assert torch.equal(model(rows()), reference(rows()))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_inputs_of_several_lengths_in_one(layout):
    model, reference = with_reference(stack())
    with page(model) as attached:
        for last in (3, 5, 3):
            x = torch.nested.nested_tensor([rows(4), rows(last)], layout=layout)
            for got, want in zip(model(x).unbind(), reference(x).unbind(), strict=True):
                assert torch.equal(got, want)
        assert attached.stats().passes == 3
