# SPDX-License-Identifier: Apache-2.0
"""Which of the tensors that autograd saves are blocks, and that they come back as they were."""

from __future__ import annotations

import pytest
import torch
from deep_layers import ROWS, WIDTH, attach, inputs, plain_loop, same, sgd
from torch import nn

from penstock.paging.training.copies import Copies
from penstock.paging.training.host_buffers import HostBuffers
from penstock.paging.training.saved import Block, Saved
from penstock.units import MIB

pytestmark = pytest.mark.usefixtures("small_blocks")


def saved_bytes(between, x=None):
    """Bytes of blocks that are saved by `between` alone, with room."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model.forward = lambda x: between(model[0](x))
    with attach(model, sgd(model), 64 * MIB) as attached:
        out = model(inputs()[0] if x is None else x)
        found = attached.activations.saving.saved
        del out
    return found


def test_a_storage_is_one_block_however_often_it_is_saved():
    one = ROWS * WIDTH * 4
    assert saved_bytes(lambda x: x * x) == one
    assert saved_bytes(lambda x: x.t() @ x + (x[:, :8].t() @ x[:, 8:16]).sum()) == one
    assert saved_bytes(lambda x: (x.sigmoid() * x.tanh()).exp()) == 4 * one - one + one - one
    assert saved_bytes(lambda x: x.view(-1, 8, 8).transpose(0, 1).square()) == one


def test_what_came_back_is_waited_for_whenever_it_is_asked_for():
    """It may be by another stream than the last time: a node's attribute, then backward."""
    waited = []

    class Counting(Copies):
        def wait(self, content, done):
            waited.append(done)

    def ignore(*_):
        pass

    buffers = HostBuffers(pinned=False, budget=MIB, check_host=ignore)
    tensor = torch.arange(64.0)
    block = Block(tensor.untyped_storage(), 1, None, Counting(ignore), buffers, ignore)
    saved, expected = Saved(tensor[8:], block), tensor[8:].tolist()
    assert not block.may_leave()
    del tensor
    assert block.may_leave()
    block.start_out()
    block.finish_out()
    block.start_in()
    waited.clear()
    assert saved.get().tolist() == saved.get().tolist() == expected
    assert len(waited) == 2


def test_what_leaves_is_read_after_the_stream_that_it_was_saved_in(monkeypatch):
    """Two passes in different streams: room for the second is made by what the first has saved."""
    streams, sources = ["first"], []
    monkeypatch.setattr(Copies, "here", lambda self: streams[-1])
    monkeypatch.setattr(Copies, "out", lambda self, a, b, source: sources.append(source))
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(10))
    model = nn.Sequential(*layers)
    with attach(model, sgd(model), MIB) as attached:
        outs = [model(inputs()[0])]
        before = len(sources)
        streams.append("second")
        outs.append(model(inputs()[0]))
        assert attached.activations.saving.most_there < len(layers) * 2 * ROWS * WIDTH * 4
    assert before > 0
    assert sources[:before] == before * ["first"]
    assert sources[before] == "first"
    assert sources[-1] == "second"


def test_weights_inputs_and_small_tensors_are_no_blocks():
    assert saved_bytes(lambda x: x @ torch.ones(WIDTH, 1)) == 0
    assert saved_bytes(lambda x: x[:2].sigmoid(), inputs()[0][:16]) == 0
    x = inputs()[0]
    assert saved_bytes(lambda y: (y + 0) + x, x) == 0
    assert saved_bytes(lambda y: y + 0 * x.mul(x), x.requires_grad_()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_views_of_other_types_and_strides(dtype):
    def between(x):
        y = x.to(dtype)
        z = (y.t()[8:40, ::2] * y.t()[8:40, ::2]).t()
        z = z.real if z.is_complex() else z
        z = torch.nn.functional.pad(z.float(), (16, 16))
        return x + z.repeat(2, 1) * y.as_strided((ROWS, WIDTH), (1, ROWS), 0).abs().float()

    same(between=between, budget=2 * MIB)


def test_autocast_and_sections_without_grad():
    def between(x):
        with torch.no_grad():
            mask = x > 0
            scale = x.abs().mean(-1, keepdim=True)
        with torch.autocast("cpu", enabled=False):
            return torch.where(mask, x.float() / scale.float(), x.float() * 0.5)

    def loop(model, optimizer, x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            after = model(x).sum().item()
        return [loss.item(), after]

    same(loop, between=between)


def test_dropout_and_indices():
    def loop(model, optimizer, x):
        torch.manual_seed(5)
        return plain_loop(model, optimizer, x)

    def between(x):
        x = nn.functional.dropout(x, 0.3)
        best, where = x.topk(32, dim=1)
        return x.scatter_add(1, where, best * best)

    same(loop, between=between)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_programs_at_random(seed):
    """Operators in any order, on what any of the last ones gave, some of it kept for later."""
    operators = [
        torch.tanh, torch.sin, lambda x: x * x, lambda x: x.t().contiguous().t(),
        lambda x: x[:, torch.arange(WIDTH - 1, -1, -1)], lambda x: x.roll(1, 0) * 0.5,
        lambda x: nn.functional.layer_norm(x, (WIDTH,)), lambda x: torch.relu_(x + 1),
        lambda x: torch.cat([x[::2], x[1::2]]).mul_(0.7), lambda x: x.softmax(-1) * x,
        lambda x: x.bfloat16().float().sigmoid(),
        lambda x: x.unflatten(1, (8, 8)).flip(1).flatten(1),
    ]  # fmt: skip

    def around(layer, x):
        random = torch.Generator().manual_seed(seed * 100 + len(list(layer.parameters())))
        tensors = [layer(x)]
        for _ in range(8):
            which = int(torch.randint(len(operators), (), generator=random))
            back = int(torch.randint(min(3, len(tensors)), (), generator=random))
            tensors.append(operators[which](tensors[-1 - back]))
        return nn.functional.layer_norm(sum(tensors[-2:]), (WIDTH,))

    same(around=around, budget=2 * MIB)
