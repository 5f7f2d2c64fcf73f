# SPDX-License-Identifier: Apache-2.0
"""Tensors that hang on weights in a library's own objects, as bitsandbytes' scales do."""

from __future__ import annotations

import copy

import pytest
import torch
from attach_models import PAGE, WIDTH, page, rows
from torch import nn
from training_tower import learn

import penstock
from penstock.paging.managed import attach_managed

LAYERS = 12
BLOCK = 4  # weights that have one scale


class State:
    """Scales, themselves in steps of a scale, as a QuantState within a QuantState has them."""

    __module__ = "bitsandbytes.stand_in"

    def __init__(self, absmax, offset=None, state2=None):
        self.absmax, self.offset, self.state2 = absmax, offset, state2

    def scales(self):
        return self.absmax * self.state2.absmax + self.offset


class Codes(nn.Parameter):
    __module__ = "bitsandbytes.stand_in"


class Linear(nn.Module):
    """Codes of one byte whose scales are no parameter of anybody's."""

    __module__ = "bitsandbytes.stand_in"

    def __init__(self, weight):
        super().__init__()
        blocks = weight.detach().reshape(-1, BLOCK)
        offset = blocks.abs().amax(1).mean()
        step = (blocks.abs().amax(1) - offset).abs().amax() / 127
        absmax = ((blocks.abs().amax(1) - offset) / step).round()
        state = State(absmax, offset, State(step.reshape(1)))
        codes = (blocks / state.scales().clamp(min=1e-6)[:, None] * 127).round().clamp(-127, 127)
        self.weight = Codes(codes.to(torch.int8).reshape(weight.shape), requires_grad=False)
        self.weight.quant_state = self.quant_state = state

    def forward(self, x):
        scales = self.weight.quant_state.scales()
        weight = self.weight.to(x.dtype).reshape(-1, BLOCK) * scales[:, None] / 127
        return x @ weight.reshape(self.weight.shape).T

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.absmax"] = self.weight.quant_state.absmax.detach()


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(Linear(torch.randn(WIDTH, WIDTH)) for _ in range(LAYERS))).eval()


def scales_of(each):
    return [layer.weight.quant_state.absmax for layer in each]


@torch.no_grad()
def test_scales_page_with_their_weights():
    paged, reference = model(), model()
    before = scales_of(paged)
    scales = sum(tensor.nbytes for tensor in before)
    codes = sum(parameter.nbytes for parameter in paged.parameters())
    with page(paged, 60) as attached:
        stats = attached.stats()
        assert stats.weight_bytes == codes + scales + LAYERS * 8  # an offset and a step each
        assert stats.paged_bytes > scales + codes - 1024
        for seed in range(5):
            assert torch.equal(paged(rows(seed=seed)), reference(rows(seed=seed)))
        assert attached.stats().peak_device_bytes <= 60 * 1024 < codes + scales
        assert all(one is other for one, other in zip(scales_of(paged), before, strict=True))
        state = paged.state_dict()
        for number, tensor in enumerate(scales_of(reference)):
            assert torch.equal(state[f"{number}.weight.absmax"], tensor)
            own = attached.store.addresses()
            assert state[f"{number}.weight.absmax"].data_ptr() not in own
    assert torch.equal(paged(rows()), reference(rows()))
    assert all(map(torch.equal, scales_of(paged), scales_of(reference)))


@torch.no_grad()
def test_scales_in_managed_memory():
    paged, reference = model(), model()
    emulated = {"granularity": PAGE}
    with attach_managed(paged, gpu_memory="60KiB", device="emulated", emulated=emulated):
        assert all(torch.equal(paged(rows(seed=n)), reference(rows(seed=n))) for n in range(3))
    assert torch.equal(paged(rows()), reference(rows()))


class LowRank(nn.Module):
    """Adapters beside layers that are not trained."""

    def __init__(self):
        super().__init__()
        self.base = model()
        self.down = nn.ParameterList(torch.randn(4, WIDTH) / 8 for _ in self.base)
        self.up = nn.ParameterList(torch.randn(WIDTH, 4) / 8 for _ in self.base)

    def forward(self, x):
        for base, down, up in zip(self.base, self.down, self.up, strict=True):
            x = base(x) + x @ down.T @ up.T
            x = x / x.norm()
        return x


def test_adapters_train_beside_them():
    losses = []
    for attached in (False, True):
        lora = LowRank()
        optimizer = torch.optim.AdamW([*lora.down, *lora.up], lr=1e-2)
        if attached:
            held = penstock.attach_training(
                lora,
                optimizer,
                gpu_memory="320KiB",
                device="emulated",
                emulated={"granularity": PAGE},
            )
        for seed in range(4):
            loss = (lora(rows(seed=seed)) - 1).pow(2).mean()
            losses.append(learn(optimizer, loss))
        if attached:
            held.detach()
    assert losses[:4] == losses[4:]
    assert len(set(losses)) == 4


@torch.no_grad()
def test_what_others_hang_on_a_weight_is_left_alone():
    paged = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).eval()
    paged[0].weight.note = torch.ones(100)
    reference = copy.deepcopy(paged)
    place = paged[0].weight.note.data_ptr()
    with page(paged, 80):
        assert torch.equal(paged(rows()), reference(rows()))
        assert paged[0].weight.note.data_ptr() == place


@torch.no_grad()
def test_bitsandbytes():
    library = pytest.importorskip("bitsandbytes.nn")
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        layers = []
        for _ in range(LAYERS):
            weight = library.Params4bit(torch.randn(512, 512), quant_type="nf4")
            layers.append(library.Linear4bit(512, 512, bias=False, device="meta"))
            layers[-1].weight = weight
        models.append(nn.Sequential(*layers).to("cpu").eval())
    x = torch.randn(2, 512)
    expected = [models[1](x), models[0](x)]  # each once before: it packs its weights anew
    with page(models[0], 900) as attached:
        states = [layer.weight.quant_state for layer in models[0]]
        assert all(state.absmax.data_ptr() in attached.store.addresses() for state in states)
        assert all(torch.equal(models[0](x), expected[0]) for _ in range(4))
        saved = models[0].state_dict()
    kept = models[1].state_dict()
    assert saved.keys() == kept.keys()
    assert all(torch.equal(saved[key], kept[key]) for key in kept)


@torch.no_grad()
@pytest.mark.parametrize("run_before", [False, True])
def test_bitsandbytes_8_bit(run_before):
    library = pytest.importorskip("bitsandbytes.nn")
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        layers = []
        for _ in range(LAYERS):
            made = library.Linear8bitLt(512, 512, bias=False, has_fp16_weights=False)
            weight = torch.randn(512, 512) / 22
            made.weight = library.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
            layers.append(made.to("cpu"))
        models.append(nn.Sequential(*layers).eval())
    x = torch.randn(2, 512)
    expected = models[1](x)
    if run_before:  # then its codes hang on the module, and before it on the weight
        models[0](x)
    with page(models[0], 900) as attached:
        assert all(torch.equal(models[0](x), expected) for _ in range(4))
        addresses = attached.store.addresses()
        assert all(layer.state.CB.data_ptr() in addresses for layer in models[0])
        assert all(layer.state.SCB.data_ptr() in addresses for layer in models[0])
    assert torch.equal(models[0](x), expected)
