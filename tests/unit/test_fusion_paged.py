# SPDX-License-Identifier: Apache-2.0
"""Fused Hugging Face models within a budget: matrices are used outside of their own modules.

On the emulated GPU, whose evicted pages hold other data or nothing: a use that is not declared
shows as a wrong result or as a crash.
"""

from __future__ import annotations

import pytest
import torch
from training_tower import GRANULE, learn, page

from penstock import attach, attach_training
from penstock.errors import UsageError
from penstock.fusion import VARIANTS, patch
from penstock.fusion.parts import parts_for
from penstock.models.configs import get_config
from penstock.models.gpt import build_on_meta
from penstock.models.weights import synthetic_loader
from penstock.units import MIB

transformers = pytest.importorskip("transformers", minversion="5")

ALL = ",".join(VARIANTS)
EMULATED = {"granularity": GRANULE, "capacity": 256 * MIB, "seed": 1, "max_delay_us": 100}


def gpt2(width, layers):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **{"n_embd": width, "n_layer": layers, "n_head": 4, "vocab_size": 300, "n_positions": 64},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        **{"bos_token_id": 0, "eos_token_id": 0},
    )
    return transformers.GPT2LMHeadModel(config)


def ids(seed=0):
    return torch.randint(0, 300, (2, 16), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", [*VARIANTS, ALL])
def test_a_patched_model_is_attached(name):
    model = patch(gpt2(256, 6).eval(), name)
    with torch.no_grad():
        wanted = model(ids()).logits.clone()
    budget = sum(p.nbytes for p in model.parameters()) // 2
    options = {"gpu_memory": budget, "chunk_size": GRANULE, "emulated": EMULATED}
    with attach(model, device="emulated", **options) as attached, torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(ids()).logits, wanted)
        assert attached.stats().bytes_in > 0


def test_an_attached_model_is_not_patched():
    model = gpt2(256, 6).eval()
    options = {"gpu_memory": 12 * MIB, "chunk_size": GRANULE, "emulated": EMULATED}
    with attach(model, device="emulated", **options), torch.no_grad():
        wanted = model(ids()).logits.clone()
        with pytest.raises(UsageError, match="patch first: then attach"):
            patch(model, ALL)
        assert torch.equal(model(ids()).logits, wanted)


def losses(model, optimizer, autocast):
    found = []
    for step in range(4):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(ids(step), labels=ids(step)).loss
        found.append(learn(optimizer, loss))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", [*VARIANTS, ALL])
def test_a_patched_model_is_trained(name, autocast):
    plain, paged = (patch(gpt2(128, 5).train(), name) for _ in range(2))
    first, second = (torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True) for m in (plain, paged))
    wanted = losses(plain, first, autocast)
    with page(paged, second, chunks=70):
        assert losses(paged, second, autocast) == wanted
    for mine, theirs in zip(paged.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def trained(model, optimizer, tokens):
    """Losses of some steps; dropout is drawn alike in each."""
    found = []
    for step in range(4):
        torch.manual_seed(step)
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1).flatten())
        found.append(learn(optimizer, loss))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline", *VARIANTS, ALL])
def test_a_gpt_of_variants_is_trained(name):
    """Made on "meta" and filled in place, with dropout: bit for bit what it is without a budget.

    The budget is that of two layers and of tensors, in the first step as well, where it is seen
    only by watching which matrices a fused function reads.
    """
    config = get_config("tiny", n_layers=6, d_model=128, dropout=0.1)
    load = synthetic_loader(config)
    models = [build_on_meta(config, parts=parts_for(name)).train() for _ in range(2)]
    plain = models[0].to_empty(device="cpu")
    for key, parameter in plain.named_parameters():
        load(key, parameter)
    tokens = torch.randint(0, config.vocab_size, (2, 16))
    wanted = trained(plain, torch.optim.SGD(plain.parameters(), lr=0.1), tokens)
    optimizer = torch.optim.SGD(models[1].parameters(), lr=0.1)
    budget = sum(parameter.nbytes for parameter in plain.blocks[:2].parameters()) + 3 * MIB // 2
    options = {"gpu_memory": budget, "chunk_size": GRANULE, "emulated": EMULATED, "load": load}
    attached = attach_training(models[1], optimizer, device="emulated", **options)
    assert trained(models[1], optimizer, tokens) == wanted
    assert attached.stats().iteration_bytes_in > 0
    named = {attached.hooks.name_of(use) for use in range(500)}
    if "ffn_layernorm" in name:  # its matrices are not those of the module that reads them
        assert "blocks.3.mlp (backward)" in named
    attached.detach()
    for got, parameter in zip(models[1].parameters(), plain.parameters(), strict=True):
        assert torch.equal(got, parameter)
