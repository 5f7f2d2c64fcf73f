# SPDX-License-Identifier: Apache-2.0
"""Derivatives through the fused functions: compiled; and twice, which is refused or right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from penstock.fusion import (
    attention_projection,
    dropout_add,
    dropout_add_layer_norm,
    layer_norm_linear,
    layer_norm_mlp,
    residual_linear,
)

SHAPES = {
    **{"x": (8, 32), "w": (32,), "b": (32,), "up": (24, 32), "down": (32, 24)},
    **{"qkv": (1, 8, 96), "out": (32, 32)},
}
OPS = {
    "dropout_add_layer_norm": lambda t: dropout_add_layer_norm(t["x"], t["x"], t["w"], t["b"])[0],
    "dropout_add": lambda t: dropout_add(t["x"], None, p=0.5, seed=torch.tensor([3])),
    "layer_norm_linear": lambda t: layer_norm_linear(t["x"], t["w"], t["b"], t["up"], None),
    "layer_norm_mlp": lambda t: layer_norm_mlp(
        t["x"], t["w"], t["b"], t["up"], None, t["down"], None
    ),
    "attention_projection": lambda t: attention_projection(
        t["qkv"], t["out"], None, t["x"].view(1, 8, 32), n_heads=4
    ),
}


@pytest.mark.parametrize("op", OPS)
def test_second_derivatives_are_refused_and_not_wrong(op):
    """Backward takes what forward kept for constants: a gradient's gradient was 14 % off."""
    t = {name: torch.randn(shape, requires_grad=True) for name, shape in SHAPES.items()}
    loss = OPS[op](t).square().sum()
    grads = torch.autograd.grad(loss, list(t.values()), create_graph=True, allow_unused=True)
    penalty = sum(grad.square().sum() for grad in grads if grad is not None)
    with pytest.raises(RuntimeError, match=r"differentiate twice|backward is not implemented"):
        penalty.backward()


def test_a_sum_with_a_product_has_second_derivatives():
    x, weight = (torch.randn(rows, 16, requires_grad=True) for rows in (4, 16))
    found = []
    for residual_sum in (
        lambda: residual_linear(x, weight, None, x),
        lambda: x + F.linear(x, weight),
    ):
        (grad,) = torch.autograd.grad(residual_sum().pow(3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), (x, weight)))
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("op", OPS)
def test_compiled_they_give_the_same_gradients(op):
    t = {name: torch.randn(shape, requires_grad=True) for name, shape in SHAPES.items()}
    compiled = torch.compile(OPS[op], backend="aot_eager", fullgraph=True)
    found = [
        torch.autograd.grad(run(t).square().sum(), list(t.values()), allow_unused=True)
        for run in (OPS[op], compiled)
    ]
    assert any(grad is not None for grad in found[0])
    for wanted, mine in zip(*found, strict=True):
        assert (mine is None) == (wanted is None)
        if wanted is not None:
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
