# SPDX-License-Identifier: Apache-2.0
"""Fused Hugging Face models within a budget: matrices are used outside of their own modules.

On the emulated GPU, whose evicted pages hold other data or nothing: a use that is not declared
shows as a wrong result or as a crash.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

from training_tower import GRANULE, page  # noqa: E402

from penstock import attach  # noqa: E402
from penstock.errors import UsageError  # noqa: E402
from penstock.fusion import VARIANTS, patch  # noqa: E402
from penstock.units import MIB  # noqa: E402

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
        assert attached.stats()["bytes_in"] > 0


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
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


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
