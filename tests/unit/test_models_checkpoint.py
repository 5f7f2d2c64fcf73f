# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the Hugging Face layout: parity with transformers, and what is refused.

The oracle is transformers' own GPT2LMHeadModel on the same files.
"""

from __future__ import annotations

import builtins
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.errors import EnvironmentProblem, FailedError, PenstockError
from penstock.models.checkpoint import open_checkpoint
from penstock.models.weights import load_model

SHAPES = {
    "odd_heads_tied": {"n_layer": 2, "n_head": 3, "n_embd": 48, "vocab_size": 101},
    "one_head_untied": {"n_layer": 1, "n_head": 1, "n_embd": 16, "tie_word_embeddings": False},
    "five_heads_inner": {"n_layer": 3, "n_head": 5, "n_embd": 40, "n_inner": 72},
    "wide_eps": {"n_layer": 2, "n_head": 4, "n_embd": 32, "layer_norm_epsilon": 1e-3},
}


def oracle(**shape):
    """A transformers GPT-2 whose every parameter is random, norms and biases too."""
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 97, "n_positions": 24, "bos_token_id": 0, "eos_token_id": 0, **shape}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


@torch.no_grad()
def largest_difference(ours, theirs):
    generator = torch.Generator().manual_seed(2)
    shape = (3, ours.config.n_positions)
    idx_BT = torch.randint(ours.config.vocab_size, shape, generator=generator)
    ours_BTV, theirs_BTV = ours(idx_BT), theirs(idx_BT).logits
    assert theirs_BTV.std() > 0.1
    return float((ours_BTV - theirs_BTV).abs().max())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_are_those_of_transformers(tmp_path, shape):
    theirs = oracle(**shape)
    theirs.save_pretrained(tmp_path)
    config, load = open_checkpoint(tmp_path)
    assert config.tied == shape.get("tie_word_embeddings", True)
    assert config.parameter_count() == sum(p.numel() for p in theirs.parameters())
    assert largest_difference(load_model(config, load), theirs) < 2e-5


def test_shards_are_read(tmp_path):
    theirs = oracle(**SHAPES["five_heads_inner"])
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    config, load = open_checkpoint(tmp_path)
    assert largest_difference(load_model(config, load), theirs) < 2e-5


@pytest.mark.parametrize("name", ["odd_heads_tied", "one_head_untied"])
def test_names_without_the_prefix_and_masks_are_read(tmp_path, name):
    theirs = oracle(**SHAPES[name])
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {k.removeprefix("transformer."): v for k, v in load_file(path).items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.uint8)
    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, path)
    config, load = open_checkpoint(tmp_path)
    assert largest_difference(load_model(config, load), theirs) < 2e-5


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
def test_dtypes_are_converted_on_the_way(tmp_path, stored, wanted):
    theirs = oracle(**SHAPES["odd_heads_tied"]).to(stored)
    theirs.save_pretrained(tmp_path)
    config, load = open_checkpoint(tmp_path)
    ours = load_model(config, load, dtype=wanted)
    expected = theirs.transformer.h[1].mlp.c_fc.weight.t().to(ours.lm_head.weight.dtype)
    assert torch.equal(ours.blocks[1].mlp.up.weight, expected)


@pytest.fixture
def good(tmp_path):
    """A checkpoint that opens, to be spoilt."""
    oracle(n_layer=2, n_head=2, n_embd=16, vocab_size=30, n_positions=12).save_pretrained(tmp_path)
    open_checkpoint(tmp_path)
    return tmp_path


def refused(directory, kind=FailedError):
    """The one line with which the directory is refused."""
    with pytest.raises(kind) as caught:
        open_checkpoint(directory)
    assert isinstance(caught.value, PenstockError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change_config(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(directory, change):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_missing_files(good):
    assert "no such directory" in refused(good / "nothing")
    assert "no such directory" in refused(good / "config.json")
    (good / "model.safetensors").rename(good / "weights.bin")
    assert "neither model.safetensors nor model.safetensors.index.json" in refused(good)
    (good / "config.json").unlink()
    assert "config.json: no such file" in refused(good)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00\xff", "[" * 100_000])
def test_a_config_that_is_no_json_object(good, text):
    (good / "config.json").write_text(text, encoding="latin-1")
    assert "config.json" in refused(good)
    assert "JSON" in refused(good)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', expected 'gpt2'"),
        ({"activation_function": "relu"}, "activation_function is 'relu', expected 'gelu_new'"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"n_head": 3}, "3 heads do not divide a hidden size of 16"),
        ({"n_layer": "two"}, "n_layers is 'two'"),
        ({"n_embd": -16}, "d_model is -16"),
        ({"layer_norm_epsilon": "x"}, "config.json"),
        ({"n_layer": 3}, "tensor 'h.2.ln_1.weight' of shape (16,) is missing"),
        ({"n_layer": 1}, "12 tensors that a GPT-2 of 1 layers does not have, such as 'h.1.attn"),
        ({"n_positions": 13}, "'transformer.wpe.weight' has shape (12, 16), expected (13, 16)"),
        ({"n_inner": 32}, "c_fc.weight' has shape (16, 64), expected (16, 32)"),
        ({"tie_word_embeddings": False}, "'lm_head.weight' of shape (30, 16) is missing"),
    ],
)
def test_a_config_that_does_not_fit(good, changes, said):
    change_config(good, **changes)
    assert said in refused(good)


def test_tensors_that_do_not_fit(good):
    name = "transformer.h.1.attn.c_attn.weight"
    change_tensors(good, lambda t: t.update({name: t[name].t().contiguous()}))
    assert f"'{name}' has shape (48, 16), expected (16, 48)" in refused(good)
    change_tensors(good, lambda t: t.update({name: torch.zeros(16, 48, dtype=torch.int8)}))
    assert f"'{name}' is I8, expected one of BF16, F16, F32, F64" in refused(good)
    change_tensors(good, lambda t: t.pop(name))
    assert "'h.1.attn.c_attn.weight' of shape (16, 48) is missing" in refused(good)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_file(good, share):
    path = good / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    message = refused(good)
    assert "model.safetensors" in message
    assert f"{int(len(whole) * share)} bytes that are not a whole safetensors file" in message


def test_a_file_of_something_else(good):
    (good / "model.safetensors").write_bytes(b"\x80\x04 a pickle, or whatever " * 50)
    assert "not a whole safetensors file" in refused(good)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({}, "expected a 'weight_map'"),
        ({"weight_map": []}, "expected a 'weight_map'"),
        ({"weight_map": {"a": "missing.safetensors"}}, "no such file, but"),
        ({"weight_map": {"a": "../x.safetensors"}}, "is not a file name in this directory"),
        ({"weight_map": {"a": ".."}}, "no such file"),
    ],
)
def test_a_spoilt_index(good, index, said):
    (good / "model.safetensors").unlink()
    (good / "model.safetensors.index.json").write_text(json.dumps(index))
    assert said in refused(good)


def test_a_load_checks_name_and_shape(good):
    config, load = open_checkpoint(good)
    with pytest.raises(FailedError, match="a GPT-2 has no parameter 'x'"):
        load("x", torch.empty(1))
    with pytest.raises(FailedError, match=r"'lm_head.weight' has shape \(30, 16\)"):
        load("lm_head.weight", torch.empty(16, 30))
    destination = torch.nn.Parameter(torch.empty(config.parameter_shapes()["lm_head.weight"]))
    load("lm_head.weight", destination)
    assert torch.isfinite(destination).all()


def test_without_safetensors_the_remedy_is_named(good, monkeypatch):
    real_import = builtins.__import__

    def no_safetensors(name, *args, **kwargs):
        if name.startswith("safetensors"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_safetensors)
    assert "pip install 'penstock[hf]'" in refused(good, EnvironmentProblem)
