# SPDX-License-Identifier: Apache-2.0
"""The product kernel in Triton's interpreter; see kernels.py.

The interpreter of triton 3.6 multiplies bfloat16 as the integers it is stored in, so that products
are compared in float32 and float16 here; on a GPU benchmarks/fusion_conformance.py compares all.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from error_rule import check_rule, random

from penstock.fusion import layer_norm_linear, product, product_kernel, residual_linear

SHAPES = [(7, 40, 192, 0.0), (37, 70, 66, 50.0), (20, 130, 100, -3.0), (2, 33, 1600, 1.0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("m", "n", "k", "shift"), SHAPES)
@pytest.mark.parametrize("activation", [None, "gelu_tanh", "relu"])
def test_deferred_layer_norm(activation, m, n, k, shift, dtype, launched):
    parts = (random(m, k, dtype=dtype, shift=shift), random(k, dtype=dtype, shift=1.0))
    parts += (random(k, dtype=dtype), random(n, k, dtype=dtype, std=0.05), random(n, dtype=dtype))
    got = layer_norm_linear(*parts, activation=activation, implementation="triton")
    assert launched == ["forward"]
    plain = product.Product(*parts, None, activation, 1e-5).plain()
    wide = (part.double() for part in parts)
    exact = product.Product(*wide, None, activation, 1e-5).plain()
    check_rule(got, plain, exact)


def deferred_reference(x, gamma, w_gamma, offset, weight, eps):
    """LayerNorm and product by the kernel's algebra, (M, N) in float32; its first tile is 64."""
    wide = x.float()
    centre = wide[:, :64].mean(1, keepdim=True)
    shifted = wide - centre
    mean = shifted.mean(1, keepdim=True)
    variance = (shifted.square().mean(1, keepdim=True) - mean.square()).clamp_min(0.0)
    product = (shifted * gamma.float()).to(x.dtype).float() @ weight.float().T
    return (product - mean * w_gamma) * torch.rsqrt(variance + eps) + offset


def test_the_kernel_is_its_reference():
    x, gamma, beta = random(6, 64, shift=9.0), random(64), random(64)
    weight, bias = random(24, 64), random(24)
    w_gamma, offset = product.fold(gamma, beta, weight, bias)
    got = layer_norm_linear(x, gamma, beta, weight, bias, implementation="triton")
    wanted = deferred_reference(x, gamma, w_gamma, offset, weight, 1e-5)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "tile", [*product_kernel.WIDE_TILES, *product_kernel.NARROW_TILES], ids=lambda t: t.name
)
def test_every_tile_and_epilogue(tile, launched):
    x, weight, bias = random(70, 90), random(150, 90, std=0.1), random(150)
    residual = random(70, 150)
    parts = (x, None, None, weight, bias, residual)
    got = product.Product(*parts, "gelu_tanh", 0.0).epilogue(tile)
    wanted = residual + F.gelu(F.linear(x, weight, bias), approximate="tanh")
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert launched == ["forward"]


def test_a_transposed_weight_needs_no_copy(launched):
    x, weight, residual = random(5, 32), random(32, 48).T, random(5, 48)
    got = residual_linear(x, weight, None, residual, implementation="triton")
    torch.testing.assert_close(got, residual + x @ weight.T, rtol=1e-5, atol=1e-5)
    assert launched == ["forward"]


def torch_layers(x, norm, weight, bias, residual, activation):
    y = F.layer_norm(x, x.shape[-1:], *norm) if norm else x
    out = F.linear(y, weight, bias)
    out = F.gelu(out, approximate="tanh") if activation else out
    return out if residual is None else residual + out


@pytest.mark.parametrize("activation", [None, "gelu_tanh"])
@pytest.mark.parametrize("has", ["norm bias", "norm", "bias residual", "residual", ""])
@pytest.mark.parametrize("deferred", [True, False])
def test_calls_of_one_layout_give_their_own_results(has, activation, deferred, monkeypatch):
    way = "deferred:" if deferred and "norm" in has else "epilogue:"
    asked = []
    monkeypatch.setattr(product, "way_of", lambda *_: asked.append(1) or way + "64x128x64x4x4")
    monkeypatch.setattr(product, "WAYS", type(product.WAYS)())
    for number in range(4):  # the first finds the way; the second is the first that repeats it
        x, weight = random(2, 3, 40), random(50, 40, std=0.2)
        norm = (random(40, shift=1.0), random(40)) if "norm" in has else None
        bias = random(50) if "bias" in has else None
        residual = random(2, 3, 50) if "residual" in has else None
        parts = (x, *(norm or (None, None)), weight, bias, residual, activation, 1e-5)
        got = product.compute(None, *parts)
        wanted = torch_layers(x, norm, weight, bias, residual, activation)
        assert got.shape == (2, 3, 50)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=f"call {number}")
    assert len(asked) == 1
    assert [ready is not None for *_, ready in product.WAYS.values()] == [True]
    rows = random(3, 2, 40).transpose(0, 1)  # another layout of the same shape
    got = product.compute(None, rows, *parts[1:])
    assert len(asked) == 2
    wanted = torch_layers(rows, norm, weight, bias, residual, activation)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    other = product.compute(None, *parts[:-1], 0.5)  # another eps
    wanted = torch_layers(x, norm, weight, bias, residual, activation) if not norm else None
    if wanted is None:
        y = F.layer_norm(x, (40,), *norm, 0.5)
        wanted = torch_layers(y, None, weight, bias, residual, activation)
    torch.testing.assert_close(other, wanted, rtol=1e-4, atol=1e-4)


def test_derived_vectors_follow_their_weights():
    x, gamma, beta, weight = random(3, 16), random(16), random(16), random(8, 16)
    folded = product.Folded()

    def run():
        return layer_norm_linear(
            x, gamma, beta, weight, None, implementation="triton", folded=folded
        )

    def wanted():
        return F.linear(F.layer_norm(x, (16,), gamma, beta), weight)

    torch.testing.assert_close(run(), wanted(), rtol=1e-5, atol=1e-5)
    for changed in (weight, gamma, beta):
        changed.mul_(1.7)
        torch.testing.assert_close(run(), wanted(), rtol=1e-5, atol=1e-5)
    with torch.inference_mode():  # what is made here has no count of its changes
        weight = weight.clone()
        for factor in (1.0, 0.3):
            weight.mul_(factor)
            torch.testing.assert_close(run(), wanted(), rtol=1e-5, atol=1e-5)
