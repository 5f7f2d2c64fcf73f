# SPDX-License-Identifier: Apache-2.0
"""Weights that are made of other tensors, as torchao's are, on the emulated GPU."""

from __future__ import annotations

import copy

import pytest
import torch
from attach_models import PAGE, WIDTH, page, rows
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map
from training_tower import learn

import penstock
from penstock.errors import UsageError
from penstock.paging.managed import attach_managed
from penstock.paging.wrappers import plain_parts

LAYERS = 12


class Quantised(torch.Tensor):
    """Codes of one byte and a scale for each row; every operator computes with the product."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, dtype=scale.dtype, device=codes.device
        )

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"])

    def dequantize(self):
        return self.codes * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        plain = tree_map(lambda x: x.dequantize() if isinstance(x, cls) else x, (args, kwargs))
        return func(*plain[0], **(plain[1] or {}))


def quantise(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            scale = module.weight.detach().abs().amax(1, keepdim=True) / 127
            codes = (module.weight.detach() / scale).round().to(torch.int8)
            module.weight = nn.Parameter(Quantised(codes, scale), requires_grad=False)
    return model


@pytest.fixture
def models():
    """A quantised model and one like it."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(quantise(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])))
    return [model.eval() for model in made]


def same(model, reference):
    return all(torch.equal(model(rows(seed=n)), reference(rows(seed=n))) for n in range(4))


@torch.no_grad()
def test_they_are_paged(models):
    model, reference = models
    before = [layer.weight for layer in model]
    parts = sum(part.nbytes for weight in before for part in plain_parts(weight))
    with page(model, 52) as attached:
        assert same(model, reference)
        stats = attached.stats()
        assert stats.paged_bytes >= parts
        assert stats.bytes_in > 2 * parts  # they did not all stay
        assert stats.peak_device_bytes <= attached.budget
        assert all(isinstance(layer.weight, nn.Parameter) for layer in model)
    assert all(layer.weight is weight for layer, weight in zip(model, before, strict=True))
    assert same(model, reference)


@torch.no_grad()
def test_reads_beside_their_modules(models):
    model, reference = models
    with page(model, 52):
        assert same(model, reference)
        x = rows()
        want = F.linear(x, reference[3].weight)
        assert torch.equal(F.linear(x, model[3].weight), want)
        held = model[5].weight
        assert same(model, reference)
        assert torch.equal(F.linear(x, held), F.linear(x, reference[5].weight))


class Borrower(nn.Module):
    """Uses one layer's weight in the forward of another."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.kept = [layers[7].weight]

    def forward(self, x, kept=False):
        x = F.linear(x, self.kept[0] if kept else self.layers[9].weight)
        return self.layers(x)


@torch.no_grad()
def test_reads_within_a_pass(models):
    model, reference = map(Borrower, models)
    model.kept = reference.kept  # of a model that is not attached: nobody's block
    with page(model, 60):
        for n in range(6):
            x = rows(seed=n)
            assert torch.equal(model(x), reference(x))
            assert torch.equal(model(x, kept=True), reference(x, kept=True))


@torch.no_grad()
def test_state_dicts(models):
    model, reference = models
    with page(model, 52):
        assert same(model, reference)
        state = model.state_dict()
        want = reference.state_dict()
        assert state.keys() == want.keys()
        for name, value in state.items():
            assert type(value) is type(want[name])
            for part, wanted in zip(plain_parts(value), plain_parts(want[name]), strict=True):
                assert torch.equal(part, wanted)
        for part in plain_parts(model[2].weight):
            part.mul_(2)
        for part in plain_parts(reference[2].weight):
            part.mul_(2)
        assert same(model, reference)
    assert same(model, reference)
    for part in plain_parts(state["2.weight"]):  # a copy, not the model's own
        part.zero_()
    assert same(model, reference)


@torch.no_grad()
def test_an_attachment_that_fails_leaves_the_model_alone(models):
    model, reference = models
    before = [layer.weight for layer in model]
    with pytest.raises(penstock.OutOfMemory):
        page(model, 4)
    assert all(layer.weight is weight for layer, weight in zip(model, before, strict=True))
    assert same(model, reference)
    with page(model, 52), pytest.raises(UsageError, match="cannot be moved, cast or shared"):
        model.half()


@torch.no_grad()
def test_wrappers_within_wrappers():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)]).eval()
    for layer in model:
        a, b, c = (torch.randn(WIDTH, WIDTH) for _ in range(3))
        layer.weight = nn.Parameter(
            TwoTensor(TwoTensor(a, b), TwoTensor(b, c)), requires_grad=False
        )
    reference = copy.deepcopy(model)
    x = rows()
    with page(model, 160) as attached:
        for _ in range(4):
            got, want = plain_parts(model(x)), plain_parts(reference(x))
            assert len(got) == 4
            assert all(map(torch.equal, got, want))
        assert attached.stats().bytes_in > 0


def test_what_does_not_keep_its_tensors_is_refused():
    class Copies(Quantised):
        @classmethod
        def __tensor_unflatten__(cls, inner, context, size, stride):
            return cls(inner["codes"].clone(), inner["scale"])

    model = nn.Linear(WIDTH, WIDTH)
    codes, scale = torch.ones(WIDTH, WIDTH, dtype=torch.int8), torch.ones(WIDTH, 1)
    model.weight = weight = nn.Parameter(Copies(codes, scale), requires_grad=False)
    with pytest.raises(UsageError, match="Copies does not keep the tensors"):
        page(model, 52)
    assert model.weight is weight
    assert weight.codes is codes or torch.equal(weight.codes, codes)


@torch.no_grad()
def test_torchao():
    quantization = pytest.importorskip("torchao.quantization")
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16) for _ in range(LAYERS)]
        models.append(nn.Sequential(*layers).eval())
        quantization.quantize_(models[-1], quantization.Int8WeightOnlyConfig())
    x = rows().to(torch.bfloat16)
    with page(models[0], 52) as attached:
        assert all(torch.equal(models[0](x), models[1](x)) for _ in range(4))
        assert attached.stats().bytes_in > attached.stats().weight_bytes


@torch.no_grad()
def test_from_managed_memory(models):
    model, reference = models
    emulated = {"granularity": PAGE}
    with attach_managed(model, gpu_memory="80KiB", device="emulated", emulated=emulated):
        assert same(model, reference)
    assert same(model, reference)


class LowRank(nn.Module):
    """Adapters beside layers that are not trained."""

    def __init__(self, base):
        super().__init__()
        torch.manual_seed(2)
        self.base = base
        self.down = nn.ParameterList(torch.randn(4, WIDTH) / 8 for _ in base)
        self.up = nn.ParameterList(torch.randn(WIDTH, 4) / 8 for _ in base)

    def forward(self, x):
        for base, down, up in zip(self.base, self.down, self.up, strict=True):
            x = base(x) + x @ down.T @ up.T
        return x


def test_adapters_are_trained_beside_them(models):
    def train(model, optimizer):
        losses = []
        for n in range(4):
            loss = model(rows(seed=n)).square().mean()
            losses.append(learn(optimizer, loss))
        return losses

    model, reference = map(LowRank, models)
    optimizers = [torch.optim.AdamW([*each.down, *each.up], lr=1e-2) for each in (model, reference)]
    want = train(reference, optimizers[1])
    with penstock.attach_training(
        model, optimizers[0], gpu_memory="256KiB", device="emulated", emulated={"granularity": PAGE}
    ) as attached:
        assert train(model, optimizers[0]) == want
        assert attached.stats().bytes_in > 2 * attached.stats().weight_bytes
    assert all(map(torch.equal, model.up, reference.up))
    with torch.no_grad():
        assert same(model, reference)
