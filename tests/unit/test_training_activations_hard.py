# SPDX-License-Identifier: Apache-2.0
"""Activations that leave the device, in programs that do more with autograd than most.

Whatever a program does, it gets what it would get with everything resident, or PyTorch's own error,
or one that names the remedy.
"""

from __future__ import annotations

import threading

import pytest
import torch
from deep_layers import ROWS, Deep, attach, inputs, pair, plain_loop, same, sgd, top_hooks
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_tower import both_ways, drawn, learn

from penstock.errors import OutOfMemory
from penstock.paging.training import room
from penstock.units import KIB, MIB

pytestmark = pytest.mark.usefixtures("small_blocks")


def test_a_step_that_keeps_its_activations_is_out_of_memory():
    model, _ = pair()
    with attach(model, sgd(model), activations="keep"), pytest.raises(OutOfMemory):
        model(inputs()[0])


def test_a_plain_loop():
    same()


# ---- Backward more than once -------------------------------------------------------------------


def test_backward_twice_over_one_graph():
    def loop(model, optimizer, x):
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        (2 * loss).backward()
        optimizer.step()
        norms = [p.grad.norm().item() for p in model.parameters()]
        optimizer.zero_grad()
        return [loss.item(), *norms]

    same(loop)


def test_gradients_of_gradients(monkeypatch):
    monkeypatch.setattr(room, "FIRST_MARGIN", 7 / 8)  # what such a backward saves stays

    def loop(model, optimizer, x):
        loss = model(x).square().mean()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        learn(optimizer, loss + gradient.square().sum())
        return [loss.item(), x.grad.sum().item()]

    same(loop, budget=16 * MIB, grad=True)


def test_gradients_taken_within_forward():
    def forces(x):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            energy = (inner.sin() * inner).sum()
            (gradient,) = torch.autograd.grad(energy, inner, create_graph=True)
        return x + gradient * x

    same(between=forces)


@pytest.mark.slow
def test_several_forwards_before_one_backward():
    def loop(model, optimizer, x):
        losses = [model(part).square().mean() for part in (x, 2 * x, 3 * x)]
        learn(optimizer, sum(losses))
        return [loss.item() for loss in losses]

    same(loop, budget=2 * MIB)


class Both(nn.Module):
    """Two networks that are trained against each other."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = Deep(), Deep()

    def forward(self, x, part):
        return getattr(self, part)(x)


@pytest.mark.slow
def test_two_networks_that_take_turns_like_a_gan():
    def loop(model, optimizer, x):
        made = model(x, "maker")
        judged = model(made.detach(), "judge").mean() - model(x, "judge").mean()
        judged.backward()
        loss = judged.detach() - model(made, "judge").square().mean()
        learn(optimizer, loss)
        return [judged.item(), loss.item()]

    def run(model, optimizer):
        return [loop(model, optimizer, x) for x in inputs()]

    more = {"attach": attach, "budget": 3 * MIB, "step_in_backward": False}
    assert both_ways(drawn(Both), run, sgd, **more).activation_bytes_in > 0


def test_accumulation():
    def loop(model, optimizer, x):
        losses = []
        for part in x.chunk(2):
            loss = model(torch.cat([part, part])).square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        return losses

    same(loop, budget=2 * MIB)


# ---- Writes ------------------------------------------------------------------------------------


class Written(nn.Module):
    """Changes in place what was saved before: by `when`, before or after it could leave."""

    def __init__(self, when, size=ROWS):
        super().__init__()
        self.deep, self.when, self.size = Deep(), when, size

    def forward(self, x):
        saved = self.deep.enter(x[: self.size]).exp()  # exp saves its result
        if self.when == "at once":
            saved.add_(1)
        y = self.deep(x)
        if self.when == "later":
            saved.add_(1)
        if self.when == "a view":
            saved[0].zero_()
        return y.sum() + saved.sum()


@pytest.mark.parametrize("when", ["at once", "later", "a view"])
@pytest.mark.parametrize("size", [ROWS, 4])  # a block, and what is too small for one
def test_a_saved_tensor_that_was_changed_is_pytorchs_error(when, size):
    torch.manual_seed(0)
    model = Written(when, size)
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as plain:
        model(inputs()[0]).backward()
    with (
        attach(model, sgd(model)),
        pytest.raises(RuntimeError, match="modified by an inplace operation") as paged,
    ):
        model(inputs()[0]).backward()
    expected = str(plain.value).split("is at version")[1].split("(")[0]
    assert expected in str(paged.value)


def test_a_weight_that_was_changed_is_pytorchs_error():
    model, _ = pair()
    with attach(model, sgd(model), step_in_backward=False):
        loss = model(inputs()[0]).sum()
        with torch.no_grad():
            model.layers[0].down.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class Writes(torch.autograd.Function):
    """Writes into what it has saved, in backward; twice over one graph that shows."""

    @staticmethod
    def forward(ctx, x):
        y = x.detach() * 2
        ctx.save_for_backward(y)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y.mul_(2)


def test_what_backward_writes_into_saved_tensors():
    def loop(model, optimizer, x):
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        optimizer.zero_grad()
        return [loss.item()]

    plain, paged = pair(between=Writes.apply)
    want = [loop(plain, sgd(plain), inputs()[0])]
    with attach(paged, sgd(paged), step_in_backward=False):
        assert [loop(paged, sgd(paged), inputs()[0])] == want


def test_outputs_changed_in_place():
    def loop(model, optimizer, x):
        out = model(x).tanh()
        out = out * 1
        out.mul_(2).add_(1)
        return [learn(optimizer, out.square().mean())]

    same(loop, around=lambda layer, x: torch.relu_(layer(x)))


# ---- Hooks and checkpoints ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant):
    def around(layer, x):
        return checkpoint(lambda x: torch.sin(layer(x)), x, use_reentrant=reentrant)

    # Only the layers' inputs are saved, 64 KiB each.
    same(around=around, budget=1792 * KIB)


def test_the_programs_own_hooks_around_forward_have_their_way():
    packed = []

    def loop(model, optimizer, x):
        def pack(tensor):
            packed.append(tensor.nbytes)
            return tensor.detach().clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(x).square().mean()
        return [learn(optimizer, loss)]

    same(loop, budget=32 * MIB, moves=False)
    assert len(packed) % 2 == 0
    assert packed[: len(packed) // 2] == packed[len(packed) // 2 :]


def test_the_programs_own_hooks_within_forward_have_their_way():
    packed = []

    def around(layer, x):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: packed.append(tensor.nbytes) or tensor.to(torch.float64),
            lambda tensor: tensor.to(torch.float32),
        ):
            x = torch.sin(x)
        return layer(x)

    same(around=around, budget=4 * MIB)
    assert len(packed) == 2 * 4 * 16


def test_hooks_for_saved_tensors_switched_off_by_the_program():
    def loop(model, optimizer, x):
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            loss = model(x).square().mean()
        return [learn(optimizer, loss)]

    same(loop, budget=32 * MIB, moves=False)


def test_transforms_that_forbid_hooks_name_the_remedy():
    def between(x):
        return x + torch.func.grad(lambda y: (y * y).sum())(x)

    model, _ = pair(between=between)
    with (
        attach(model, sgd(model), 32 * MIB),
        pytest.raises(RuntimeError, match='activations="keep"'),
    ):
        model(inputs()[0])
    assert top_hooks(False) is None
    plain, paged = pair(between=between)
    want = plain_loop(plain, sgd(plain), inputs()[0])
    optimizer = sgd(paged)
    with attach(paged, optimizer, 32 * MIB, activations="keep"):
        assert plain_loop(paged, optimizer, inputs()[0]) == want


# ---- What else programs do ---------------------------------------------------------------------


def test_gradients_of_what_is_inside():
    def loop(model, optimizer, x):
        outs = []

        def keep(module, args, out):
            out.retain_grad()
            outs.append(out)

        handles = [layer.register_forward_hook(keep) for layer in model.layers[::5]]
        losses = plain_loop(model, optimizer, x)
        for handle in handles:
            handle.remove()
        return [*losses, *(out.grad.norm().item() for out in outs)]

    same(loop, budget=2 * MIB)


def test_gradients_of_some_weights_alone():
    def loop(model, optimizer, x):
        some = list(model.layers[8].parameters())
        gradients = torch.autograd.grad(model(x).square().mean(), some)
        optimizer.zero_grad()
        return [gradient.norm().item() for gradient in gradients] + plain_loop(model, optimizer, x)

    same(loop)


def test_backward_in_another_thread():
    def loop(model, optimizer, x):
        loss = model(x).square().mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        optimizer.step()
        optimizer.zero_grad()
        return [loss.item()]

    same(loop)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_pass_without_gradients_between_forward_and_backward(mode):
    def loop(model, optimizer, x):
        loss = model(x).square().mean()
        with mode():
            after = model(2 * x).sum().item()
        learn(optimizer, loss)
        return [loss.item(), after, torch.zeros(2).sum().item()]

    same(loop, budget=2 * MIB)


@pytest.mark.slow
def test_anomaly_detection():
    def loop(model, optimizer, x):
        with torch.autograd.detect_anomaly(check_nan=True):
            return plain_loop(model, optimizer, x)

    with pytest.warns(UserWarning, match="Anomaly Detection"):
        same(loop)


def test_functions_over_rows():
    same(between=lambda x: torch.vmap(lambda row: row.sin() * row)(x), budget=2 * MIB)


def test_inputs_without_a_storage():
    """Of a graph's edges, say."""

    class Edges(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = Deep()

        def forward(self, x, edges):
            return self.deep(torch.sparse.mm(edges, x))

    edges = torch.eye(ROWS).roll(1, 0).to_sparse()

    def run(model, optimizer):
        return [plain_loop(lambda x: model(x, edges), optimizer, x) for x in inputs(2)]

    assert both_ways(drawn(Edges), run, sgd, attach=attach).activation_bytes_in > 0
