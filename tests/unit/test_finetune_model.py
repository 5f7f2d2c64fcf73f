# SPDX-License-Identifier: Apache-2.0
"""Models by name have the sizes they are known by, and every architecture trains."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from penstock.cli.main import main
from penstock.finetune.model import layers_of, plan_model, weight_dtype
from penstock.finetune.request import Request
from penstock.models import shapes

SMALL = {
    "opt": {
        **{"hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 6, "ffn_dim": 64},
        **{"num_attention_heads": 2, "vocab_size": 99, "max_position_embeddings": 64},
    },
    "llama": {
        **{"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2, "vocab_size": 99},
        **{"intermediate_size": 64, "max_position_embeddings": 64},
    },
    "gpt_neox": {
        **{"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2, "vocab_size": 99},
        **{"intermediate_size": 64, "max_position_embeddings": 64, "rotary_pct": 0.25},
    },
}


@pytest.mark.parametrize(
    ("name", "billions", "layers"),
    [
        ("gpt2_xl", 1.558, 48),
        ("gpt3_6.7b", 6.658, 32),
        ("opt-1.3b", 1.316, 24),
        ("vicuna-13b", 13.016, 40),
        ("gpt-neox-20b", 20.555, 44),
    ],
)
def test_a_shape_has_the_parameters_it_is_known_by(name, billions, layers):
    plan = plan_model(Request(name))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(plan.config)
    assert sum(each.numel() for each in model.parameters()) / 1e9 == pytest.approx(
        billions, abs=1e-3
    )
    assert len(layers_of(model)) == layers
    assert plan.positions == shapes.SHAPES[name].positions


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
def test_every_architecture_learns_beyond_its_budget_as_within(kind, monkeypatch, capsys):
    shape = shapes.Shape("small", kind, SMALL[kind], 64)
    monkeypatch.setitem(shapes._BY_KEY, "small", shape)
    monkeypatch.setenv("PENSTOCK_EMULATED_GRANULARITY", "4KiB")
    work = ["--model", "small", "--device", "emulated", "--seq-len", "8", "--batch", "1"]
    work += ["--steps", "3", "--lr", "0.01", "--strategy", "LRO", "--lora-rank", "4", "--json"]
    results = []
    for budget in ("96KiB", "64MiB"):
        assert main(["finetune", *work, "--gpu-memory", budget]) == 0
        results.append(json.loads(capsys.readouterr().out))
    beyond, within = results
    assert beyond["loss"] == within["loss"]
    assert len(set(beyond["loss"])) == 3
    assert beyond["bytes_in"][-1] > within["bytes_in"][-1] == 0


def test_weights_are_kept_as_fine_as_they_have_to_be():
    def kept(**options):
        return weight_dtype(Request("tiny", **options))

    assert kept() == kept(strategy="R") == kept(dtype="float32", strategy="L") == torch.float32
    assert kept(strategy="L") == kept(dtype="bfloat16") == kept(zero=2) == torch.bfloat16
