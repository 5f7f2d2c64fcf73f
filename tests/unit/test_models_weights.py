# SPDX-License-Identifier: Apache-2.0
"""Made-up weights: the same for a seed and a name whatever the order, and like GPT-2's."""

from __future__ import annotations

import pytest
import torch

from penstock.errors import FailedError
from penstock.models.configs import get_config
from penstock.models.weights import _POOL, load_model, synthetic_loader

TINY = get_config("tiny")


def load_all(names, seed=0, dtype=torch.float32):
    load, shapes = synthetic_loader(TINY, seed), TINY.parameter_shapes()
    values = {name: torch.full(shapes[name], float("nan"), dtype=dtype) for name in names}
    for name, destination in values.items():
        load(name, destination)
    return values


def test_the_order_of_loading_decides_nothing():
    names = list(TINY.parameter_shapes())
    forward, backward = load_all(names), load_all(names[::-1])
    assert all(torch.equal(forward[name], backward[name]) for name in names)


def test_seed_and_name_decide():
    name, other = "blocks.0.mlp.up.weight", "blocks.1.mlp.up.weight"
    one, two = load_all([name, other], seed=1), load_all([name], seed=2)
    assert not torch.equal(one[name], one[other])
    assert not torch.equal(one[name], two[name])


def test_values_are_those_gpt2_starts_from():
    for name, value in load_all(TINY.parameter_shapes()).items():
        if name.endswith("bias"):
            assert (value == 0).all()
        elif "norm" in name:
            assert (value == 1).all()
        else:
            assert value.std() == pytest.approx(0.02, rel=0.05)
            assert abs(value.mean()) < 0.002


def test_a_dtype_only_rounds():
    exact = load_all(["lm_head.weight"])["lm_head.weight"]
    for dtype in (torch.float16, torch.bfloat16):
        rounded = load_all(["lm_head.weight"], dtype=dtype)["lm_head.weight"]
        assert torch.equal(rounded, exact.to(dtype))


def test_a_parameter_larger_than_the_pool_is_filled_without_equal_rows():
    config = get_config("gpt2_small")
    name = "token_embedding.weight"
    destination = torch.full(config.parameter_shapes()[name], float("nan"), dtype=torch.float16)
    assert destination.numel() > 9 * _POOL
    synthetic_loader(config, 0)(name, destination)
    assert torch.isfinite(destination).all()
    assert len(torch.unique(destination[:, :8], dim=0)) == len(destination)


def test_wrong_destinations_are_refused():
    load = synthetic_loader(TINY)
    with pytest.raises(FailedError, match="tiny has no parameter 'x'"):
        load("x", torch.empty(1))
    with pytest.raises(FailedError, match=r"'final_norm.bias' has shape \(64,\).*\(65,\)"):
        load("final_norm.bias", torch.empty(65))


def test_load_model_fills_ties_and_casts():
    config = get_config("tiny", tied=True)
    model = load_model(config, synthetic_loader(config, 5), dtype="bf16")
    assert model.lm_head.weight is model.token_embedding.weight
    assert not model.training
    expected = load_all(config.parameter_shapes(), seed=5, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name]), name
