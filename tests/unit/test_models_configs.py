# SPDX-License-Identifier: Apache-2.0
"""The table of shapes: the ancestors' published numbers, names, and what is refused."""

from __future__ import annotations

import pytest
import torch

from penstock.errors import UsageError
from penstock.models.configs import CONFIGS, GPTConfig, dtype_bytes, dtype_name, get_config

# Hidden size, heads, layers, head size, 1e9 parameters, GiB in fp32, MiB a layer: the table of
# the runner that Penstock descends from, lm_head untied.
ANCESTORS = {
    "gpt2_small": (768, 12, 12, 64, 0.163, 0.61, 27),
    "gpt2_medium": (1024, 16, 24, 64, 0.406, 1.51, 48),
    "gpt2_large": (1280, 20, 36, 64, 0.838, 3.12, 75),
    "gpt2_xl": (1600, 25, 48, 64, 1.638, 6.10, 117),
    "gpt3_6.7b": (4096, 32, 32, 128, 6.860, 25.6, 768),
    "gpt3_13b": (5200, 40, 40, 130, 13.51, 50.3, 1.21 * 1024),
    "gpt3_175b": (12288, 96, 96, 128, 175.2, 653, 6.75 * 1024),
}


@pytest.mark.parametrize("name", ANCESTORS)
def test_the_ancestors_table(name):
    d_model, heads, layers, head_dim, billions, gib, layer_mib = ANCESTORS[name]
    config = get_config(name)
    assert (config.d_model, config.n_heads, config.n_layers) == (d_model, heads, layers)
    assert config.head_dim == head_dim
    assert (config.vocab_size, config.n_positions, config.tied) == (50257, 1024, False)
    assert config.parameter_count() / 1e9 == pytest.approx(billions, rel=1e-3)
    assert config.weight_bytes("fp32") / 2**30 == pytest.approx(gib, rel=6e-3)
    counts = config.module_parameter_counts().items()
    layer = sum(count for name, count in counts if name.startswith("blocks.0."))
    assert layer * 4 / 2**20 == pytest.approx(layer_mib, rel=3e-3)


@pytest.mark.parametrize(("name", "gigabytes"), [("gpt3_6.7b", 13.72), ("gpt3_13b_5120", 26.21)])
def test_the_shapes_that_were_measured(name, gigabytes):
    assert get_config(name).weight_bytes("fp16") / 1e9 == pytest.approx(gigabytes, abs=0.005)


def test_sums_agree_with_each_other():
    for config in CONFIGS.values():
        modules = config.module_parameter_counts()
        shared = config.vocab_size * config.d_model if config.tied else 0
        assert sum(modules.values()) == config.parameter_count() + shared
        assert config.largest_module_bytes("fp16") == 2 * max(modules.values())
    tied = get_config("gpt2_small", tied=True)
    assert tied.parameter_count() == 124_439_808  # GPT-2 as published


def test_cost_of_a_token_is_that_of_its_matrix_products():
    config = GPTConfig("x", n_layers=1, n_heads=1, d_model=8, vocab_size=10, n_positions=4)
    weights = 3 * 8 * 8 + 8 * 8 + 2 * 8 * 32 + 10 * 8
    seen = (1 + 2 + 3 + 4) / 4
    assert config.flops_per_token(4) == 2 * weights + 2 * (2 * 8 * seen)
    # Within a few per cent of the rule of thumb, two for every parameter.
    large = get_config("gpt3_13b_5120")
    assert large.flops_per_token(1) == pytest.approx(2 * large.parameter_count(), rel=0.03)


def test_bytes_beside_the_weights():
    config = get_config("gpt2_small")
    assert config.activation_bytes(1, 1024, "fp32") == 1024 * (2 * 768 + 50257) * 4


def test_names():
    assert get_config("gpt2_1.5b") == get_config("gpt2_xl") == get_config(" GPT2-XL ")
    assert set(ANCESTORS) < set(CONFIGS)
    with pytest.raises(UsageError, match=r"unknown model 'gpt2_xxl'; try: gpt2_xl"):
        get_config("gpt2_xxl")
    with pytest.raises(UsageError, match=r"try: one of tiny, tiny_odd, gpt2_small"):
        get_config("llama")
    with pytest.raises(UsageError, match=r"llama, and no GPT; try: penstock finetune --model vic"):
        get_config("Vicuna_7B")
    assert get_config("opt-1.3b").parameter_count() / 1e9 == pytest.approx(1.316, abs=1e-3)


def test_changes():
    assert get_config("tiny", tied=True).tied
    assert get_config("tiny", d_model=32).d_ff == 128
    assert get_config("tiny", d_model=32, d_ff=7).d_ff == 7


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n_heads": 5}, "5 heads do not divide a hidden size of 64"),
        ({"n_layers": 0}, "n_layers is 0"),
        ({"n_positions": -1}, "n_positions is -1"),
        ({"vocab_size": 1.5}, "vocab_size is 1.5"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_impossible_shapes_are_refused(fields, said):
    with pytest.raises(UsageError, match=said):
        get_config("tiny", **fields)


def test_dtypes():
    assert dtype_name("FP16") == dtype_name("half") == dtype_name(torch.float16) == "float16"
    assert [dtype_bytes(name) for name in ("fp32", "bf16", "float16")] == [4, 2, 2]
    with pytest.raises(UsageError, match="unknown dtype 'int8'"):
        dtype_name("int8")
