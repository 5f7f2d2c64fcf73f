# SPDX-License-Identifier: Apache-2.0
"""The fused functions: the rule of errors, masks, strides, operators, and what they refuse.

The rule: the error against float64 is at most twice that of torch's own layers in the same dtype,
plus a little.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from error_rule import check_rule, random
from torch.library import opcheck

from penstock.errors import UsageError
from penstock.fusion import (
    attention_projection,
    dropout_add,
    dropout_add_layer_norm,
    layer_norm_linear,
    layer_norm_mlp,
    residual_linear,
)
from penstock.fusion.philox import draw_seed, keep, threshold, words

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def results(function, inputs):
    """Outputs and the gradients of all inputs."""
    out = function(*inputs)
    outputs = out if isinstance(out, tuple) else (out,)
    grads = [torch.cos(torch.arange(o.numel())).view_as(o).to(o) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, inputs, grads)]


def compare(fused, plain, inputs):
    """Hold `fused` to the rule; `inputs` are of the dtype to test."""
    inputs = [part.detach().requires_grad_() for part in inputs]
    wide = [part.detach().double().requires_grad_() for part in inputs]
    exact = results(plain, wide)
    for number, (got, theirs, truth) in enumerate(
        zip(results(fused, inputs), results(plain, inputs), exact, strict=True)
    ):
        check_rule(got, theirs, truth, number)
    # Without a graph it is another path to the same numbers.
    with torch.no_grad():
        out, theirs = fused(*inputs), plain(*inputs)
    for got, other, truth in zip(
        *(o if isinstance(o, tuple) else (o,) for o in (out, theirs)), exact, strict=False
    ):
        check_rule(got, other, truth, "no graph")


# ---- Dropout, add, LayerNorm -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "d"), [(5, 192), (3, 1600), (2, 5120), (1, 66), (130, 7)])
def test_dropout_add_layer_norm(rows, d, p, dtype):
    torch.manual_seed(d)
    seed = draw_seed(torch.device("cpu"))
    stays = keep(seed, rows, d, p) / (1 - p)
    inputs = [random(rows, d, dtype=dtype), random(rows, d, dtype=dtype, shift=3.0)]
    inputs += [random(d, dtype=dtype) for _ in range(3)]

    def plain(x, residual, x_bias, w, b):
        z = residual + (x + x_bias) * stays.to(x)
        return F.layer_norm(z, (d,), w, b), z

    def fused(x, residual, x_bias, w, b):
        return dropout_add_layer_norm(x, residual, w, b, p=p, x_bias=x_bias, seed=seed)

    compare(fused, plain, inputs)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_dropout_add_alone(p):
    seed = draw_seed(torch.device("cpu"))
    stays = keep(seed, 12, 20, p) / (1 - p)
    inputs = [random(3, 4, 20), random(3, 4, 20), random(20)]
    compare(
        lambda x, r, b: dropout_add(x, r, p=p, x_bias=b, seed=seed),
        lambda x, r, b: r + (x + b) * stays.view(3, 4, 20).to(x),
        inputs,
    )


def test_a_layer_norm_alone_returns_the_stream_itself():
    x, w, b = random(2, 3, 16), random(16), random(16)
    y, z = dropout_add_layer_norm(None, x, w, b)
    assert torch.equal(z, x)
    torch.testing.assert_close(y, F.layer_norm(x, (16,), w, b))


def test_gradients_by_finite_differences():
    parts = [random(3, 5, dtype=torch.float64).requires_grad_() for _ in range(2)]
    vectors = [random(5, dtype=torch.float64).requires_grad_() for _ in range(3)]
    seed = torch.tensor([7])
    assert torch.autograd.gradcheck(
        lambda x, r, w, b, xb: dropout_add_layer_norm(x, r, w, b, p=0.4, x_bias=xb, seed=seed),
        [*parts, *vectors],
    )
    assert torch.autograd.gradcheck(
        lambda x, w, b: layer_norm_mlp(
            x, w, b, *mlp_weights(5, torch.float64), p=0.4, recompute=2, seed=seed
        ),
        [parts[0], *vectors[:2]],
    )


# ---- Masks -------------------------------------------------------------------------------------


def test_philox_is_that_of_its_authors():
    """The known answer of Random123 for philox4x32, 7 rounds, key and counter of zeros."""
    drawn = words(torch.tensor([0]), 1, 4)[0].tolist()
    assert [f"{word:08x}" for word in drawn] == "5f6fb709 0d893f64 4f121f81 4f730a48".split()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_keep_rate_is_right(p):
    kept = keep(torch.tensor([123]), 512, 1000, p).double()
    deviation = abs(float(kept.mean()) - (1 - p)) / math.sqrt(p * (1 - p) / kept.numel())
    assert deviation < 5
    # Rows and columns are independent: neighbours agree as often as chance has it.
    for other in (kept.roll(1, 0), kept.roll(1, 1)):
        assert abs(float((kept * other).mean()) - (1 - p) ** 2) < 5e-3


def test_backward_draws_the_mask_of_forward_and_every_call_a_new_one():
    x = torch.ones(64, 100, requires_grad=True)
    outs = [dropout_add(x, None, p=0.5) for _ in range(2)]
    assert not torch.equal(outs[0], outs[1])
    for out in outs:
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, out)  # 2 where kept, 0 where not
    torch.manual_seed(5)
    first = dropout_add(x, None, p=0.5)
    torch.manual_seed(5)
    assert torch.equal(first, dropout_add(x, None, p=0.5))


def test_rows_do_not_depend_on_how_many_there_are():
    seed = torch.tensor([-5])
    assert torch.equal(keep(seed, 10, 33, 0.5)[:4], keep(seed, 4, 33, 0.5))
    assert torch.equal(keep(seed, 10, 33, 0.5)[:, :20], keep(seed, 10, 20, 0.5))


def test_thresholds_are_words():
    assert threshold(0.0) == -(2**31)
    assert threshold(0.5) == 0
    assert threshold(1 - 1e-12) == 2**31 - 1


# ---- Products ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "d", "shift"), [(5, 192, 0.0), (3, 1600, 50.0), (7, 66, 1.0)])
@pytest.mark.parametrize("activation", [None, "gelu_tanh", "relu"])
def test_layer_norm_linear(rows, d, shift, activation, dtype):
    torch.manual_seed(rows)
    inputs = [random(rows, d, dtype=dtype, shift=shift), random(d, dtype=dtype, shift=1.0)]
    inputs += [
        random(d, dtype=dtype),
        random(40, d, dtype=dtype, std=0.05),
        random(40, dtype=dtype),
    ]

    def plain(x, w, b, weight, bias):
        out = F.linear(F.layer_norm(x, (d,), w, b), weight, bias)
        if activation == "gelu_tanh":
            return F.gelu(out, approximate="tanh")
        return F.relu(out) if activation else out

    compare(lambda *parts: layer_norm_linear(*parts, activation=activation), plain, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_linear(dtype):
    inputs = [random(2, 3, 24, dtype=dtype), random(16, 24, dtype=dtype), random(16, dtype=dtype)]
    inputs.append(random(2, 3, 16, dtype=dtype))
    compare(residual_linear, lambda x, w, b, r: r + F.linear(x, w, b), inputs)


def mlp_weights(d, dtype):
    torch.manual_seed(1)
    return (
        random(4 * d, d, dtype=dtype, std=0.1),
        random(4 * d, dtype=dtype),
        random(d, 4 * d, dtype=dtype, std=0.1),
        random(d, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_layer_norm_mlp(p, recompute, dtype):
    d, seed = 48, torch.tensor([99])
    stays = (keep(seed, 10, d, p) / (1 - p)).view(2, 5, d)
    inputs = [random(2, 5, d, dtype=dtype), random(d, dtype=dtype), random(d, dtype=dtype)]
    inputs += mlp_weights(d, dtype)

    def plain(x, w, b, up, up_b, down, down_b):
        inner = F.gelu(F.linear(F.layer_norm(x, (d,), w, b), up, up_b), approximate="tanh")
        return x + F.linear(inner, down, down_b) * stays.to(x)

    def fused(*parts):
        return layer_norm_mlp(*parts, p=p, recompute=recompute, seed=seed)

    compare(fused, plain, inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_attention_projection(p, dtype):
    d, heads, seed = 48, 3, torch.tensor([5])
    stays = (keep(seed, 22, d, p) / (1 - p)).view(2, 11, d)
    inputs = [random(2, 11, 3 * d, dtype=dtype), random(d, d, dtype=dtype, std=0.1)]
    inputs += [random(d, dtype=dtype), random(2, 11, d, dtype=dtype)]

    def plain(qkv, weight, bias, residual):
        q, k, v = (part.view(2, 11, heads, -1).transpose(1, 2) for part in qkv.split(d, 2))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return residual + F.linear(out.transpose(1, 2).flatten(2), weight, bias) * stays.to(qkv)

    def fused(*parts):
        return attention_projection(*parts, n_heads=heads, p=p, seed=seed)

    compare(fused, plain, inputs)


def test_attention_with_dropout_is_composed_and_drops():
    parts = [random(2, 11, 48), random(16, 16), random(16), random(2, 11, 16)]
    for part in parts:
        part.requires_grad_()
    torch.manual_seed(0)
    first = attention_projection(*parts, n_heads=2, attention_p=0.5, p=0.5)
    torch.manual_seed(0)
    again = attention_projection(*parts, n_heads=2, attention_p=0.5, p=0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, attention_projection(*parts, n_heads=2, attention_p=0.5, p=0.5))
    first.sum().backward()
    assert all(part.grad is not None for part in parts)


# ---- What is kept ------------------------------------------------------------------------------


def kept_bytes(function, parameters):
    skip = {part.untyped_storage().data_ptr() for part in parameters}
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skip:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = function()
    del out
    return sum(seen.values())


def test_bytes_kept_are_those_of_the_table():
    d, rows = 64, 128
    unit = rows * d * 4
    weights = [
        part.requires_grad_() for part in (random(d), random(d), *mlp_weights(d, torch.float32))
    ]
    x = random(rows, d).requires_grad_()
    small = 2 * rows * 4 + 8  # two floats a row and a seed
    for recompute, units in ((0, 9), (1, 5), (2, 1)):
        kept = kept_bytes(
            lambda r=recompute: layer_norm_mlp(x, *weights, p=0.1, recompute=r), weights
        )
        assert kept <= units * unit + small
        assert kept > (units - 0.5) * unit
    norm = kept_bytes(lambda: layer_norm_linear(x, *weights[:4]), weights)
    assert norm <= unit + small
    w, b = weights[:2]
    row = kept_bytes(lambda: dropout_add_layer_norm(x, x, w, b, p=0.5), weights)
    assert row <= unit + small  # z; neither the mask nor x


# ---- Strides, empties, frozen weights ----------------------------------------------------------


def test_strided_rows_and_transposed_weights_are_taken_as_they_are():
    wide = random(6, 80)
    x, w, b = wide[:, :32], random(32), random(32)
    assert not x.is_contiguous()
    y, _ = dropout_add_layer_norm(None, x, w, b)
    torch.testing.assert_close(y, F.layer_norm(x, (32,), w, b))
    weight = random(32, 24).T
    out = layer_norm_linear(x, w, b, weight, None)
    torch.testing.assert_close(out, F.linear(F.layer_norm(x, (32,), w, b), weight))
    turned = random(4, 6, 32).transpose(0, 1)
    torch.testing.assert_close(
        residual_linear(turned, weight, None, turned[..., :24]),
        turned[..., :24] + F.linear(turned, weight),
    )


def test_nothing_to_drop_and_nothing_to_add_is_a_copy():
    for x in (random(3, 8), random(3, 8).requires_grad_()):
        out = dropout_add(x, None, p=0.0)
        assert torch.equal(out, x)
        assert out.data_ptr() != x.data_ptr()
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, torch.ones_like(x))


def test_no_rows_are_no_error():
    x, w, b = random(0, 16).requires_grad_(), random(16), random(16)
    y, z = dropout_add_layer_norm(x, x, w, b, p=0.5)
    assert y.shape == z.shape == (0, 16)
    (y.sum() + z.sum()).backward()
    assert layer_norm_linear(x, w, b, random(4, 16), None).shape == (0, 4)


def test_frozen_weights_get_no_gradient():
    x = random(3, 16).requires_grad_()
    weights = [random(16), random(16), *mlp_weights(16, torch.float32)]
    weights[0].requires_grad_()
    layer_norm_mlp(x, *weights).sum().backward()
    assert x.grad is not None
    assert weights[0].grad is not None
    assert [part.grad for part in weights[1:]] == [None] * 5


# ---- Operators ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("x", [True, False])
def test_operators_pass_opcheck(x, norm, p):
    if not x and (p or not norm):
        pytest.skip("without x there is only the LayerNorm")
    part = random(3, 12).requires_grad_()
    other = random(3, 12).requires_grad_()
    seed = torch.tensor([3]) if p else None
    vectors = [random(12).requires_grad_() if norm else None for _ in range(2)]
    arguments = (part if x else None, other, random(12) if x else None, *vectors, seed, p, 1e-5)
    opcheck(torch.ops.penstock.dropout_layernorm.default, arguments)
    with torch.no_grad():
        y, z, mean, rstd = torch.ops.penstock.dropout_layernorm(*arguments)
    assert y.shape == (part.shape if norm else (0,))
    if norm or p:  # else backward is a sum, and no operator
        kept = z if x else other.detach()
        dy = torch.ones_like(kept) if norm else None
        weight = vectors[0].detach() if norm else None
        arguments = (dy, torch.ones_like(kept), kept, weight, mean, rstd, seed, p, x)
        opcheck(torch.ops.penstock.dropout_layernorm_backward.default, arguments)
    if norm and not p:
        bias = vectors[1].detach()
        wanted = torch.nn.functional.layer_norm(kept, (12,), weight, bias)
        for beta in (None, bias):
            given = (*arguments, beta, True)
            opcheck(torch.ops.penstock.dropout_layernorm_backward.default, given)
        y_again = torch.ops.penstock.dropout_layernorm_backward(*given)[5]
        torch.testing.assert_close(y_again, wanted)


@pytest.mark.parametrize("wrong", ["weight", "residual", "x_bias"])
def test_the_operator_itself_refuses_shapes_that_do_not_fit(wrong):
    """A kernel would read beyond them."""
    given = {"x": (4, 8), "residual": (4, 8), "x_bias": (8,), "weight": (8,), "bias": (8,)}
    parts = [random(*given[name][:-1], 3 if name == wrong else 8) for name in given]
    with pytest.raises(UsageError, match=f"{wrong} has shape"):
        torch.ops.penstock.dropout_layernorm(*parts, None, 0.0, 1e-5)


def test_results_may_be_changed_in_place():
    """As torch's layers allow; autograd forbids it for a view that a function of its own made."""
    x, w, b = random(2, 3, 16).requires_grad_(), random(16), random(16)
    square = random(16, 16)
    made = {
        "layer_norm_linear": lambda: layer_norm_linear(x, w, b, square, b),
        "residual_linear": lambda: residual_linear(x, square, b, x),
        "layer_norm_mlp": lambda: layer_norm_mlp(x, w, b, *mlp_weights(16, torch.float32)),
        "dropped": lambda: layer_norm_mlp(x, w, b, *mlp_weights(16, torch.float32), p=0.5),
        "dropout_add": lambda: dropout_add(x, x, p=0.5),
        "dropout_add_layer_norm": lambda: dropout_add_layer_norm(x, x, w, b)[0],
    }
    for function in made.values():
        out = function()
        out += 1.0
        out.sum().backward()


def test_checkpointing_draws_the_same_mask_again():
    from torch.utils.checkpoint import checkpoint

    weights = [random(16), random(16), *mlp_weights(16, torch.float32)]
    x = random(4, 16).requires_grad_()

    def run(inner):
        torch.manual_seed(3)
        x.grad = None
        out = inner(lambda x: layer_norm_mlp(x, *weights, p=0.5))
        out.square().sum().backward()
        return out, x.grad

    plain = run(lambda f: f(x))
    for reentrant in (False, True):
        got = run(lambda f, r=reentrant: checkpoint(f, x, use_reentrant=r))
        assert torch.equal(got[0], plain[0])
        assert torch.equal(got[1], plain[1])


# ---- What is refused ---------------------------------------------------------------------------


X, W = torch.randn(3, 16), torch.randn(16)
BAD = {
    "dtype": (lambda: dropout_add(X.int(), None, p=0.1), "x is torch.int32"),
    "mixed dtypes": (
        lambda: dropout_add_layer_norm(X, X.half(), W, W),
        "residual is torch.float16",
    ),
    "strides": (lambda: dropout_add(torch.randn(16, 3).T, None, p=0.1), "not contiguous"),
    "shape": (lambda: dropout_add_layer_norm(X, X[:2], W, W), r"residual has shape \(2, 16\)"),
    "vector": (lambda: dropout_add_layer_norm(X, X, W[:4], W), r"weight has shape \(4,\)"),
    "p = 1": (lambda: dropout_add(X, None, p=1.0), "dropout probability 1.0"),
    "p < 0": (lambda: dropout_add(X, None, p=-0.1), "dropout probability -0.1"),
    "p nan": (lambda: dropout_add(X, None, p=math.nan), "dropout probability nan"),
    "p text": (lambda: dropout_add(X, None, p="0.1"), "dropout probability '0.1'"),
    "long row": (lambda: dropout_add(torch.ones(1, 20000), None, p=0.1), "80000 bytes"),
    "nothing": (lambda: dropout_add_layer_norm(None, None, W, W), "neither x nor residual"),
    "bias alone": (lambda: dropout_add_layer_norm(None, X, W, W, x_bias=W), "x_bias without x"),
    "device": (lambda: dropout_add(X, X.to("meta"), p=0.1), "residual is on meta"),
    "weight": (lambda: layer_norm_linear(X, W, W, torch.randn(4, 8), None), r"\(4, 8\)"),
    "activation": (
        lambda: layer_norm_linear(X, W, W, torch.randn(4, 16), None, activation="silu"),
        "activation 'silu' is unknown",
    ),
    "implementation": (
        lambda: layer_norm_linear(X, W, W, torch.randn(4, 16), None, implementation="cuda"),
        "implementation 'cuda' is unknown",
    ),
    "residual": (lambda: residual_linear(X, torch.randn(4, 16), None, X), "residual has shape"),
    "recompute": (
        lambda: layer_norm_mlp(X, W, W, *mlp_weights(16, torch.float32), recompute=3),
        "recompute level 3",
    ),
    "down": (
        lambda: layer_norm_mlp(X, W, W, torch.randn(64, 16), None, torch.randn(64, 16), None),
        "down has shape",
    ),
    "heads": (
        lambda: attention_projection(
            torch.randn(1, 3, 48), torch.randn(16, 16), W, X[None], n_heads=3
        ),
        "3 heads do not divide 16",
    ),
    "qkv": (
        lambda: attention_projection(X, torch.randn(16, 16), W, X, n_heads=2),
        r"\(B, T, 3 D\)",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_wrong_input_is_refused(what):
    call, message = BAD[what]
    with pytest.raises(UsageError, match=message) as caught:
        call()
    assert caught.value.remedy
