# SPDX-License-Identifier: Apache-2.0
"""Weights and optimizer state go into files and come back, bit for bit, whole or in several."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from torch import nn

from penstock.finetune import weights


@pytest.fixture(params=[weights.SHARD, 100_000])
def _shards(request, monkeypatch):
    monkeypatch.setattr(weights, "SHARD", request.param)


def gpt2():
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=32, vocab_size=99)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.usefixtures("_shards")
def test_weights_come_back_and_others_can_load_them(tmp_path):
    model, other = gpt2(), gpt2()
    weights.save_weights(model, tmp_path, adapters=False)
    weights.load_weights(other, tmp_path, adapters=False)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert other.lm_head.weight is other.transformer.wte.weight
    stored = dict(weights.stored_tensors(tmp_path, weights.WEIGHTS))
    assert len(stored) == len(model.state_dict()) - 1  # the tied one once


@pytest.mark.usefixtures("_shards")
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, betas=(0.8, 0.95)),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    ],
)
def test_an_optimizer_goes_on_as_if_nothing_had_been(make, tmp_path):
    def steps(layer, optimizer, count):
        for _ in range(count):
            layer(torch.ones(2, 200)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    torch.manual_seed(0)
    layer, other = nn.Linear(200, 200), nn.Linear(200, 200)
    optimizer, again = make(layer.parameters()), make(other.parameters())
    steps(layer, optimizer, 2)
    weights.save_optimizer(optimizer, tmp_path)
    other.load_state_dict(layer.state_dict())
    weights.load_optimizer(again, tmp_path)
    steps(layer, optimizer, 2)
    steps(other, again, 2)
    assert torch.equal(layer.weight, other.weight)
    assert again.param_groups[0]["lr"] == 0.1


def test_what_is_large_has_an_index_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "SHARD", 1000)
    tensors = {name: torch.full((200,), value) for value, name in enumerate("abc", start=1)}
    weights.save_tensors(tensors, tmp_path, "model")
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == dict(zip("abc", files, strict=True))
    assert index["metadata"]["total_size"] == 3 * 200 * 8
