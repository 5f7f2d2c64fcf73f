# SPDX-License-Identifier: Apache-2.0
"""Who walks through a model's tensors for what they are, and who may keep or change them."""

from __future__ import annotations

import sys
from functools import partial, reduce

import pytest
import torch
from attach_models import page, rows, stack, with_reference
from torch import nn

from penstock.paging.looks import only_asks, only_looks
from penstock.paging.tables import install, uninstall


class Told:
    """What each walk was taken for."""

    def __init__(self):
        self.looks, self.asks = [], []

    def read(self, tensor):
        self.asks.append(only_asks(sys._getframe(1)))

    def listed(self, tensor):
        self.looks.append(only_looks(sys._getframe(1)))


first_of = partial(reduce, lambda one, other: one)


@pytest.fixture
def walked():
    told, model = Told(), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    tables = install(model, told)
    yield model, told.looks
    uninstall(tables)


@pytest.mark.parametrize(
    "look",
    [
        lambda model: next(model.parameters()).device,
        lambda model: next(model.parameters()).dtype,
        lambda model: next(model.parameters()).is_cuda,
        lambda model: next(model.buffers()).device,
        lambda model: next(model[0].parameters()).shape,
    ],
)
def test_an_attribute_of_the_first_one(walked, look):
    model, looks = walked
    look(model)
    assert looks == [True]


@pytest.mark.parametrize(
    "keep",
    [
        lambda model: next(model.parameters()),
        lambda model: next(model.parameters()).data,
        lambda model: next(model.parameters()).detach().device,
        lambda model: next(model.named_parameters())[1].device,
        lambda model: [p.device for p in model.parameters()],
        lambda model: next(p for p in model.parameters()).device,
        lambda model: list(model.parameters()),
        lambda model: next(map(nn.Parameter.detach_, model.parameters())).device,
        lambda model: reduce(lambda one, other: one, model.parameters()).device,
        lambda model: max(model.parameters(), key=len).device,
        lambda model: first_of(model.parameters()).device,
        lambda model: (lambda next: next(model.parameters()).device)(first_of),
        lambda model: model.state_dict(),
        lambda model: model.half().parameters,
        lambda model: model.double().training,
    ],
)
def test_whoever_might_keep_one_is_not_taken_for_a_look(walked, keep):
    model, looks = walked
    keep(model)
    assert looks
    assert not any(looks)


def test_transformers_models_are_asked_for_their_device():
    transformers = pytest.importorskip("transformers")
    config = transformers.GemmaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    told, model = Told(), transformers.GemmaForCausalLM(config)
    tables = install(model, told)
    assert model.device.type == "cpu"
    assert model.dtype == torch.float32
    assert model.num_parameters() > 0
    assert all(told.looks)
    uninstall(tables)


@torch.no_grad()
def test_what_is_looked_at_and_then_changed_by_data():
    model, reference = with_reference(stack())
    with page(model, 80):
        for _ in range(3):
            assert next(model.parameters()).device.type == "cpu"
            for each in (model, reference):
                next(each.parameters()).data.mul_(1.5)
            assert next(model.parameters()).dtype == torch.float32
            assert torch.equal(model(rows()), reference(rows()))
    assert torch.equal(model(rows()), reference(rows()))


@pytest.mark.parametrize(
    ("read", "asks"),
    [
        (lambda layer: layer.weight.dtype, True),
        (lambda layer: torch.ones(2).to(layer.weight.device), True),
        (lambda layer: layer.bias is not None, True),
        (lambda layer: 1 if layer.bias is None else 2, True),
        (lambda layer: repr(layer), True),
        (lambda layer: layer.weight, False),
        (lambda layer: layer.weight.data, False),
        (lambda layer: layer.weight is layer, False),
        (lambda layer: layer.bias or None, False),
        (lambda layer: (w := layer.bias) is None or w, False),
        (lambda layer: getattr(layer, "weight").dtype, False),  # noqa: B009
        (lambda layer: layer._parameters["weight"].dtype, False),
    ],
)
def test_whether_a_read_asks_for_no_more_than_an_attribute(read, asks):
    told, model = Told(), nn.Linear(1, 1)
    tables = install(model, told)
    read(model)
    uninstall(tables)
    assert told.asks
    assert set(told.asks) == {asks}


@torch.no_grad()
def test_what_is_asked_for_its_dtype_in_forward_stays_away():
    class Asks(nn.Sequential):
        def forward(self, x):
            for layer in reversed(self):
                x = x.to(layer.weight.dtype)
            return super().forward(x)

    (plain, _), (asks, reference) = with_reference(stack()), with_reference(Asks(*stack()))
    came = []
    for model in (plain, asks):
        with page(model, 50) as attached:
            for _ in range(3):
                repr(model)
                assert torch.equal(model(rows()), reference(rows()))
            came.append(attached.stats().iteration_bytes_in)
    assert came[1] == came[0]
