# SPDX-License-Identifier: Apache-2.0
"""The Decoder: its steps give what a growing cache gives; on a GPU they are graphs."""

from __future__ import annotations

import pytest
import torch

from penstock.errors import UsageError
from penstock.fusion import Decoder, FusedParts
from penstock.models.configs import get_config
from penstock.models.generate import generate
from penstock.models.gpt import GPT, KVCache

CONFIG = get_config("tiny", n_positions=300)


@pytest.fixture(scope="module", params=["baseline", "attention_projection,ffn_layernorm"])
def model(request):
    torch.manual_seed(0)
    parts = None if request.param == "baseline" else FusedParts(request.param)
    made = GPT(CONFIG, parts).eval()
    for parameter in made.parameters():
        parameter.data.mul_(3.0)
    return made


@torch.no_grad()
def test_steps_are_those_of_a_growing_cache_across_sizes(model):
    idx = torch.randint(CONFIG.vocab_size, (2, 280), generator=torch.Generator().manual_seed(1))
    decoder, cache = Decoder(model, CONFIG, batch=2), KVCache(CONFIG, batch=2)
    for call, kept in ((decoder, decoder.cache), (model, cache)):
        call(idx[:, :100], kept)
    for at in range(100, 280):  # 128 and 256 are crossed
        got = decoder(idx[:, at : at + 1], decoder.cache)
        wanted = model(idx[:, at : at + 1], cache)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    assert decoder.cache.length == cache.length == 280


def test_generated_text_is_the_same(model):
    decoder = Decoder(model, CONFIG, max_tokens=150)
    run = {"max_new_tokens": 140, "temperature": 0.0}
    one = list(generate(model, CONFIG, [1, 2, 3], cache=KVCache(CONFIG), **run))
    two = list(generate(decoder, CONFIG, [1, 2, 3], cache=decoder.cache, **run))
    assert one == two
    decoder.cache.reset()
    assert one == list(generate(decoder, CONFIG, [1, 2, 3], cache=decoder.cache, **run))


def test_what_cannot_be_decoded_is_refused(model):
    with pytest.raises(UsageError, match="training mode"):
        Decoder(GPT(CONFIG), CONFIG)
    decoder = Decoder(model, CONFIG, max_tokens=4)
    idx = torch.tensor([[1, 2, 3, 4]])
    with pytest.raises(UsageError, match="not the decoder's"):
        decoder(idx, KVCache(CONFIG))
    decoder(idx, decoder.cache)
    with pytest.raises(UsageError, match="5 tokens do not fit in a cache of 4"):
        decoder(idx[:, :1], decoder.cache)
    assert decoder.cache.length == 4


@pytest.mark.gpu
@torch.no_grad()
def test_on_a_gpu_steps_are_replayed():
    torch.manual_seed(0)
    model = GPT(CONFIG, FusedParts("attention_projection")).eval().cuda().bfloat16()
    decoder, cache = Decoder(model, CONFIG), KVCache(CONFIG, dtype=torch.bfloat16, device="cuda")
    idx = torch.randint(CONFIG.vocab_size, (1, 290)).cuda()
    for at in range(290):
        got = decoder(idx[:, at : at + 1], decoder.cache)
        wanted = model(idx[:, at : at + 1], cache)
        torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)
    assert decoder.graphs == 3
