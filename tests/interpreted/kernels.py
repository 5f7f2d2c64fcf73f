# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of rows in Triton's interpreter: run by tests/unit/test_fusion_kernels.py.

In a process of its own, because the interpreter is chosen by a variable when triton is imported.
On a GPU benchmarks/fusion_conformance.py compares all.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compared import summed, without_kernels
from error_rule import check_rule, random
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.fusion import (
    activation,
    columns,
    dropout_add,
    dropout_add_layer_norm,
    layer_norm_linear,
    layer_norm_mlp,
    rows,
)
from penstock.fusion.philox import keep


def row_results(inputs, seed, p):
    inputs = [part.detach().requires_grad_() for part in inputs]
    x, residual, w, b, x_bias = inputs
    y, z = dropout_add_layer_norm(x, residual, w, b, p=p, x_bias=x_bias, seed=seed)
    grads = [torch.cos(torch.arange(o.numel())).view_as(o).to(o) for o in (y, z)]
    return [y, z, *torch.autograd.grad((y, z), inputs, grads)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "d", "p"), [(3, 192, 0.3), (11, 66, 0.0), (2, 1600, 0.3), (1, 5120, 0.1)]
)
def test_rows(rows, d, p, dtype, launched, monkeypatch):
    inputs = [random(rows, d, dtype=dtype), random(rows, d, dtype=dtype, shift=3.0)]
    inputs += [random(d, dtype=dtype) for _ in range(3)]
    seed = torch.tensor([-12345678901234567])
    got = row_results(inputs, seed, p)
    expected = ["forward", "backward", *summed(dtype)]
    assert launched == expected
    with monkeypatch.context() as patched:
        without_kernels(patched)
        plain = row_results(inputs, seed, p)
        exact = row_results([part.double() for part in inputs], seed, p)
    assert launched == expected
    # The reference is held to the rule against torch's layers elsewhere, in the same words.
    for number, parts in enumerate(zip(got, plain, exact, strict=True)):
        check_rule(*parts, what=number)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_rows_of_a_stream_that_is_wider_than_what_is_added(p, launched, monkeypatch):
    """As under autocast; other dtypes of the same shapes, before and after, are other kernels."""
    seed = torch.tensor([7])
    plain = [random(5, 40), random(5, 40), *(random(40) for _ in range(3))]
    narrow = [random(5, 40, dtype=torch.float16), *plain[1:]]
    with torch.autocast("cpu", torch.float16):
        got = [row_results(inputs, seed, p) for inputs in (plain, narrow, plain)]
        assert launched == ["forward", "backward"] * 3
        with monkeypatch.context() as patched:
            without_kernels(patched)
            wanted = row_results(narrow, seed, p)
    assert [part.dtype for part in got[1]] == [part.dtype for part in wanted]
    assert got[1][0].dtype == torch.float32
    for mine, theirs in zip(got[1], wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=1e-4)
    assert all(torch.equal(*pair) for pair in zip(got[0], got[2], strict=True))


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_training_on_the_kernels_under_autocast(p, launched, monkeypatch):
    d = 32
    parts = [random(6, d), random(d), random(d), random(64, d, std=0.1), random(64)]
    parts += [random(d, 64, std=0.1), random(d)]
    parts = [part.requires_grad_() for part in parts]
    monkeypatch.setattr(rows, "BACKWARDS", type(rows.BACKWARDS)())

    def run():
        with torch.autocast("cpu", torch.float16):
            out = layer_norm_mlp(*parts, p=p, seed=torch.tensor([4]))
        return [out, *torch.autograd.grad(out.square().sum(), parts)]

    plain = layer_norm_mlp(*parts, p=p, seed=torch.tensor([4]))  # the same shapes in float32
    torch.autograd.grad(plain.square().sum(), parts)
    got = run()
    assert set(launched) == {"forward", "backward", "sums"}
    # What is compiled for one dtype of the gradient must not be given another.
    assert {key[1] for key in rows.BACKWARDS} >= {torch.float32, torch.float16}
    without_kernels(monkeypatch)
    for mine, wanted in zip(got, run(), strict=True):
        assert mine.dtype == wanted.dtype
        torch.testing.assert_close(mine, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("columns", [5, 64, 130])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_are_the_references_bit_for_bit(p, columns, launched):
    seed = torch.tensor([2**62 + 12345])
    x = torch.ones(9, columns, requires_grad=True)
    out = dropout_add(x, None, p=p, seed=seed)
    wanted = keep(seed, 9, columns, p)
    assert torch.equal(out != 0, wanted)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad != 0, wanted)
    assert launched == ["forward", "backward"]


# Parts that fit into one round, that do not, and fewer than were there when it was compiled.
@pytest.mark.parametrize("programs", [1, 3, 256, 257, 700])
@pytest.mark.parametrize(("vectors", "count"), [(1, 5), (2, 130), (3, 1600)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sums_of_columns(vectors, count, programs, dtype, launched):
    device = torch.device("cpu")
    sums = columns.ColumnSums(vectors, programs, count, dtype=dtype, device=device)
    partials = sums.partials()
    assert (partials.shape, partials.dtype) == ((vectors, programs, count), torch.float32)
    partials.copy_(random(vectors, programs, count, shift=1.0))
    got = sums(partials)
    assert launched == summed(dtype)
    assert [(part.shape, part.dtype) for part in got] == [((count,), dtype)] * vectors
    for mine, given in zip(got, partials, strict=True):
        check_rule(mine, given.sum(0).to(dtype), given.double().sum(0))
    assert all(torch.equal(*pair) for pair in zip(got, sums(partials), strict=True))


def test_strided_rows(launched):
    wide = random(4, 100)
    w, b = random(40), random(40)
    y, z = dropout_add_layer_norm(wide[:, :40], wide[:, 50:90], w, b)
    torch.testing.assert_close(z, wide[:, :40] + wide[:, 50:90])
    torch.testing.assert_close(y, F.layer_norm(z, (40,), w, b))
    assert launched == ["forward"]


def test_rows_without_a_graph_keep_no_statistics(launched):
    x, residual, w, b = random(5, 70), random(5, 70), random(70), random(70)
    parts = (x, residual, b, w, b, None, 0.0, 1e-5)
    y, z, mean, rstd = rows.forward(*parts, statistics=False)
    assert (mean, rstd) == (None, None)
    for mine, wanted in zip((y, z), rows.forward(*parts)[:2], strict=True):
        assert torch.equal(mine, wanted)
    again = dropout_add_layer_norm(x, residual, w, b, x_bias=b)
    assert all(torch.equal(*pair) for pair in zip(again, (y, z), strict=True))
    assert launched == ["forward"] * 3


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_training_on_the_kernels(p, launched, monkeypatch):
    d = 32
    parts = [random(6, d), random(d), random(d), random(64, d, std=0.1), random(64)]
    parts.append(random(d, 64, std=0.1))
    parts = [part.requires_grad_() for part in (*parts, random(d))]
    monkeypatch.setattr(activation, "BACKWARDS", type(activation.BACKWARDS)())

    def run():
        out = layer_norm_mlp(*parts, p=p, recompute=2, seed=torch.tensor([4]))
        return [out, *torch.autograd.grad(out.square().sum(), parts)]

    got = run()
    assert set(launched) == {"forward", "backward"}
    assert len(activation.BACKWARDS) == 1
    without_kernels(monkeypatch)
    for mine, wanted in zip(got, run(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


# Rows of one tile and of several, more of them than there are programs, which are 14 here. In the
# interpreter what is stored as bfloat16 is cut off and not rounded.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("count", "columns"), [(1, 5), (16, 128), (37, 130), (600, 20), (37, 768)])
@pytest.mark.parametrize("name", ["gelu_tanh", "relu"])
def test_backward_of_activations(name, count, columns, dtype, launched):
    before = random(count, columns, dtype=dtype, std=3.0)
    grad = random(count, columns, dtype=dtype)
    plain = activation.reference(grad, before, name, summed=True, again=True)
    wide = (grad.double(), before.double())
    exact = activation.reference(*wide, name, summed=True, again=True)
    got = activation.activation_backward(grad.clone(), before, name, summed=True, again=True)
    expected = ["backward", *summed(dtype)]
    assert launched == expected
    for number, parts in enumerate(zip(got, plain, exact, strict=True)):
        check_rule(*parts, what=number)
    given, none, nothing = activation.activation_backward(
        grad.clone(), before.clone(), name, summed=False, again=False
    )
    assert torch.equal(given, got[0])
    assert (none, nothing) == (None, None)
    assert launched == [*expected, "backward"]
    if dtype == torch.float16:  # a kernel is for one dtype
        mixed = activation.activation_backward(
            grad.float(), before, name, summed=False, again=False
        )
        check_rule(mixed[0], plain[0], exact[0])
        assert launched == [*expected, "backward"]


def test_activations_hand_on_what_is_no_number():
    before = torch.tensor([[float("nan"), 1.0, -1.0, 0.0, float("inf"), -float("inf")]])
    grad = torch.tensor([[1.0, float("nan"), 1.0, 1.0, 1.0, 1.0]])
    for name in ("relu", "gelu_tanh"):
        wanted = activation.reference(grad, before, name, summed=False, again=True)
        got = activation.activation_backward(grad.clone(), before, name, summed=False, again=True)
        for mine, theirs in zip((got[0], got[2]), (wanted[0], wanted[2]), strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize("frozen", ["", "down", "up bias"])
def test_backward_of_the_feed_forward_part_twice(recompute, frozen, monkeypatch):
    """What is kept is not overwritten: a graph that is kept gives the same gradients again."""
    d = 16
    shapes = {"x": (6, d), "w": (d,), "b": (d,), "up": (40, d), "up bias": (40,), "down": (d, 40)}
    parts = {name: random(*shape, std=0.3) for name, shape in shapes.items()}
    parts = {name: part.requires_grad_(name != frozen) for name, part in parts.items()}
    learning = [part for name, part in parts.items() if name != frozen]

    def run():
        out = layer_norm_mlp(*parts.values(), None, recompute=recompute).square().sum()
        return [torch.autograd.grad(out, learning, retain_graph=True) for _ in range(2)]

    first, second = run()
    without_kernels(monkeypatch)
    for mine, again, wanted in zip(first, second, run()[0], strict=True):
        assert torch.equal(mine, again)
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "d"), [(3, 192), (11, 66), (2, 1600), (1, 5120)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_backward_gives_what_the_layernorm_gave(has_bias, count, d, dtype, launched):
    x, dy = random(count, d, dtype=dtype, shift=3.0), random(count, d, dtype=dtype)
    w, b = random(d, dtype=dtype), random(d, dtype=dtype) if has_bias else None
    y, _, mean, rstd = rows.forward(None, x, None, w, b, None, 0.0, 1e-5)
    parts = (dy, None, x, w, mean, rstd, None, 0.0, False)
    *grads, again = rows.backward(*parts, bias=b, normalised=True)
    assert launched == ["forward", "backward", *summed(dtype)]
    torch.testing.assert_close(again, y, rtol=torch.finfo(dtype).eps, atol=1e-6)
    *wanted, none = rows.backward(*parts)
    assert none is None
    for one, other in zip(grads, wanted, strict=True):  # sums of rows dealt out otherwise
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_backward_takes_the_layernorm_again_only_for_weights_that_learn(frozen, launched):
    x, w, b = random(4, 32).requires_grad_(), random(32), random(32)
    weight = random(8, 32).requires_grad_(not frozen)
    out = layer_norm_linear(x, w, b, weight, None)
    out.square().sum().backward()
    assert launched == ["forward", "backward"]
    assert (weight.grad is None) == frozen
    key = next(reversed(rows.BACKWARDS))
    assert key[-2:] == (not frozen, False)


def test_operators():
    x, w = random(3, 12), random(12)
    seed = torch.tensor([3])
    checks = ("test_schema", "test_autograd_registration")  # no fake tensors in an interpreter
    opcheck(
        torch.ops.penstock.dropout_layernorm.default,
        (x, x.clone(), w, w, w, seed, 0.3, 1e-5),
        test_utils=checks,
    )
    without = torch.ops.penstock.dropout_layernorm(x, None, w, w, w, None, 0.0, 1e-5, False)
    assert [part.numel() for part in without] == [36, 36, 0, 0]
    opcheck(
        torch.ops.penstock.layernorm_gemm.default,
        (x, w, random(5), random(5, 12), random(5), random(3, 5), 1, 1e-5, [64, 128, 64, 4, 4]),
        test_utils=checks,
    )
    for sums, again in ((True, True), (False, False)):
        opcheck(
            torch.ops.penstock.activation_backward.default,
            (x, x.clone(), "gelu_tanh", sums, again),
            test_utils=checks,
        )


class Watch(TorchDispatchMode):
    """Sees every operator, as the first step within a budget does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", ["mlp", "linear", "rows"])
def test_being_watched_changes_no_bit(op, started):
    x, residual = random(37, 24), random(37, 24)
    gamma, beta, wide = random(24, shift=1.0), random(24), random(40)
    up, down, seed = random(40, 24, std=0.2), random(24, 40, std=0.2), torch.tensor([5])
    inputs = [x, residual, gamma, beta, up, wide, down]
    for tensor in inputs:
        tensor.requires_grad_()

    def outputs():
        if op == "mlp":
            return [layer_norm_mlp(x, gamma, beta, up, wide, down, beta, p=0.2, seed=seed)]
        if op == "linear":
            return [layer_norm_linear(x, gamma, beta, up, wide)]
        return dropout_add_layer_norm(x, residual, gamma, beta, p=0.2, seed=seed)

    def run():
        found = list(outputs())
        total = sum(part.sin().sum() for part in found)
        return [*found, *torch.autograd.grad(total, inputs, allow_unused=True)]

    def check_started():
        half = len(started) // 2
        # The interpreter rounds alike in each, a compiled kernel with other constants need not.
        assert started[:half] == started[half:]
        started.clear()

    alone = run()
    with Watch():
        watched = run()
    for one, other in zip(alone, watched, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    assert started
    check_started()
    with torch.no_grad():
        outputs()
        with Watch():
            outputs()
    assert bool(started) == (op != "linear")  # whose ways are torch's on a CPU
    check_started()
