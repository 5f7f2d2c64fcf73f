# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels in Triton's interpreter: run by tests/unit/test_fusion_kernels.py.

In a process of its own, because the interpreter is chosen by a variable when triton is imported.
The interpreter of triton 3.6 multiplies bfloat16 as the integers it is stored in, so that products
are compared in float32 and float16 here; on a GPU benchmarks/fusion_conformance.py compares all.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.fusion import (
    activation,
    columns,
    dropout_add,
    dropout_add_layer_norm,
    kernels,
    launch,
    layer_norm_linear,
    layer_norm_mlp,
    product,
    product_kernel,
    residual_linear,
    rows,
)
from penstock.fusion.philox import keep

assert os.environ["TRITON_INTERPRET"] == "1"

TINY = {torch.float32: 1e-6, torch.bfloat16: 1e-4, torch.float16: 1e-5}


def random(*shape, dtype=torch.float32, shift=0.0, std=1.0):
    return (torch.randn(*shape) * std + shift).to(dtype)


def rms(value):
    return float(value.detach().double().square().mean().sqrt())


def check_rule(got, plain, exact, what=""):
    size = rms(exact) + 1e-30
    mine, theirs = rms(got.double() - exact) / size, rms(plain.double() - exact) / size
    assert mine <= 2 * theirs + TINY[got.dtype], (what, mine, theirs)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def recorded(monkeypatch, what):
    """Something of every kernel that ran."""
    found = []
    original = launch.Start._interpret

    def kept(start, tensors):
        found.append(what(start))
        original(start, tensors)

    monkeypatch.setattr(launch.Start, "_interpret", kept)
    return found


@pytest.fixture
def launched(monkeypatch):
    """Names of the kernels that ran: a test of a kernel that did not run it says nothing."""
    return recorded(monkeypatch, lambda start: start._kernel.fn.__name__)


@pytest.fixture
def started(monkeypatch):
    """Names of the kernels that ran, and what each was compiled for."""
    return recorded(monkeypatch, lambda start: (start._kernel.fn.__name__, start._constants))


def without_kernels(patched):
    """From here on the references; what was decided before is forgotten."""
    patched.setattr(kernels, "usable", lambda device: False)
    patched.setattr(rows, "_forwards", type(rows._forwards)())
    patched.setattr(rows, "_backwards", type(rows._backwards)())


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
    assert launched == ["forward", "backward", "sums"]
    with monkeypatch.context() as patched:
        without_kernels(patched)
        plain = row_results(inputs, seed, p)
        exact = row_results([part.double() for part in inputs], seed, p)
    assert len(launched) == 3
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
        assert launched == ["forward", "backward", "sums"] * 3
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
    monkeypatch.setattr(rows, "_backwards", type(rows._backwards)())

    def run():
        with torch.autocast("cpu", torch.float16):
            out = layer_norm_mlp(*parts, p=p, seed=torch.tensor([4]))
        return [out, *torch.autograd.grad(out.square().sum(), parts)]

    plain = layer_norm_mlp(*parts, p=p, seed=torch.tensor([4]))  # the same shapes in float32
    torch.autograd.grad(plain.square().sum(), parts)
    got = run()
    assert set(launched) == {"forward", "backward", "sums"}
    # What is compiled for one dtype of the gradient must not be given another.
    assert {key[1] for key in rows._backwards} >= {torch.float32, torch.float16}
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
    assert launched == ["sums"]
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


SHAPES = [(7, 40, 192, 0.0), (37, 70, 66, 50.0), (20, 130, 100, -3.0), (2, 33, 1600, 1.0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("m", "n", "k", "shift"), SHAPES)
@pytest.mark.parametrize("activation", [None, "gelu_tanh", "relu"])
def test_deferred_layer_norm(activation, m, n, k, shift, dtype, launched):
    parts = (random(m, k, dtype=dtype, shift=shift), random(k, dtype=dtype, shift=1.0))
    parts += (random(k, dtype=dtype), random(n, k, dtype=dtype, std=0.05), random(n, dtype=dtype))
    got = layer_norm_linear(*parts, activation=activation, implementation="triton")
    assert launched == ["forward"]
    plain = product.reference(*parts, None, activation, 1e-5)
    exact = product.reference(*(part.double() for part in parts), None, activation, 1e-5)
    check_rule(got, plain, exact)


def test_the_kernel_is_its_reference():
    x, gamma, beta = random(6, 64, shift=9.0), random(64), random(64)
    weight, bias = random(24, 64), random(24)
    w_gamma, offset = product.fold(gamma, beta, weight, bias)
    got = layer_norm_linear(x, gamma, beta, weight, bias, implementation="triton")
    wanted = product.deferred_reference(x, gamma, w_gamma, offset, weight, 1e-5)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "tile", [*product_kernel.WIDE_TILES, *product_kernel.NARROW_TILES], ids=lambda t: t.name
)
def test_every_tile_and_epilogue(tile, launched):
    x, weight, bias = random(70, 90), random(150, 90, std=0.1), random(150)
    residual = random(70, 150)
    got = product.kernel_product(
        x, weight, bias, residual=residual, activation="gelu_tanh", tile=tile
    )
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
    monkeypatch.setattr(product, "_way", lambda *_: asked.append(1) or way + "64x128x64x4x4")
    monkeypatch.setattr(product, "_names", type(product._names)())
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
    assert [ready is not None for *_, ready in product._names.values()] == [True]
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


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_training_on_the_kernels(p, launched, monkeypatch):
    d = 32
    parts = [random(6, d), random(d), random(d), random(64, d, std=0.1), random(64)]
    parts.append(random(d, 64, std=0.1))
    parts = [part.requires_grad_() for part in (*parts, random(d))]
    monkeypatch.setattr(activation, "_backwards", type(activation._backwards)())

    def run():
        out = layer_norm_mlp(*parts, p=p, recompute=2, seed=torch.tensor([4]))
        return [out, *torch.autograd.grad(out.square().sum(), parts)]

    got = run()
    assert set(launched) == {"forward", "backward", "sums"}
    assert len(activation._backwards) == 1
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
    assert launched == ["backward", "sums"]
    for number, parts in enumerate(zip(got, plain, exact, strict=True)):
        check_rule(*parts, what=number)
    given, none, nothing = activation.activation_backward(
        grad.clone(), before.clone(), name, summed=False, again=False
    )
    assert torch.equal(given, got[0])
    assert (none, nothing) == (None, None)
    assert launched == ["backward", "sums", "backward"]
    if dtype == torch.float16:  # a kernel is for one dtype
        mixed = activation.activation_backward(
            grad.float(), before, name, summed=False, again=False
        )
        check_rule(mixed[0], plain[0], exact[0])
        assert launched == ["backward", "sums", "backward"]


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
    assert launched == ["forward", "backward", "sums"]
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
    assert launched == ["forward", "backward", "sums"]
    assert (weight.grad is None) == frozen
    key = next(reversed(rows._backwards))
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
    for summed, again in ((True, True), (False, False)):
        opcheck(
            torch.ops.penstock.activation_backward.default,
            (x, x.clone(), "gelu_tanh", summed, again),
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
