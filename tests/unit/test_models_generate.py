# SPDX-License-Identifier: Apache-2.0
"""Generation: the same tokens with and without a cache, seeds, sampling, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch

from penstock.errors import FailedError, UsageError
from penstock.models.configs import GPTConfig, get_config
from penstock.models.generate import generate
from penstock.models.gpt import KVCache
from penstock.models.weights import load_model, synthetic_loader

TINY = get_config("tiny")
PROMPT = [5, 17, 256, 3]


@pytest.fixture(scope="module")
def model():
    return load_model(TINY, synthetic_loader(TINY, 7))


def table_model(row_of_next):
    """A forward whose logits depend on the last token alone, by a table."""
    calls = []

    def forward(idx_BT, cache):
        calls.append(tuple(idx_BT.shape))
        return row_of_next[idx_BT]

    return forward, calls


def test_greedy_is_the_argmax_of_each_forward(model):
    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(10):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    new = list(generate(model, TINY, PROMPT, max_new_tokens=10, temperature=0))
    assert new == ids[len(PROMPT) :]


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.8}])
def test_a_cache_gives_the_same_tokens(model, settings):
    without = list(generate(model, TINY, PROMPT, max_new_tokens=30, seed=4, **settings))
    cache = KVCache(TINY, max_tokens=33)
    with_it = list(
        generate(model, TINY, PROMPT, max_new_tokens=30, seed=4, cache=cache, **settings)
    )
    assert without == with_it
    assert cache.length == 33


def test_a_cache_means_one_token_a_step():
    forward, calls = table_model(torch.eye(512).roll(1, dims=1))
    cache = KVCache(TINY, max_tokens=8)
    assert list(generate(forward, TINY, [1, 2], max_new_tokens=3, temperature=0, cache=cache)) == [
        3,
        4,
        5,
    ]
    assert calls == [(1, 2), (1, 1), (1, 1)]
    calls.clear()
    list(generate(forward, TINY, [1, 2], max_new_tokens=3, temperature=0))
    assert calls == [(1, 2), (1, 3), (1, 4)]


def test_the_seed_decides_the_draws(model):
    def draw(seed):
        return list(generate(model, TINY, PROMPT, max_new_tokens=20, seed=seed))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_draws_follow_the_temperature():
    logits = torch.full((512, 512), -1e9)
    logits[:, 10], logits[:, 11], logits[:, 12] = 2.0, 1.0, 0.0
    forward, _ = table_model(logits)

    def counts(**settings):
        new = list(generate(forward, TINY, [0], max_new_tokens=128, **settings))
        return [new.count(token) for token in (10, 11, 12)]

    for temperature in (0.5, 1.0, 3.0):
        expected = torch.softmax(torch.tensor([2.0, 1.0, 0.0]) / temperature, 0) * 128
        found = torch.tensor(counts(temperature=temperature), dtype=torch.float32)
        assert found.sum() == 128
        assert (found - expected).abs().max() < 4 * 128**0.5 / 2


def test_it_ends_before_the_stop_token():
    forward, _ = table_model(torch.eye(512).roll(1, dims=1))
    assert list(generate(forward, TINY, [0], max_new_tokens=9, temperature=0, stop_token=4)) == [
        1,
        2,
        3,
    ]


def test_tokens_come_as_they_are_made():
    forward, calls = table_model(torch.eye(512))
    new = generate(forward, TINY, [1], max_new_tokens=100, temperature=0)
    assert calls == []
    assert list(itertools.islice(new, 2)) == [1, 1]
    assert len(calls) == 2
    assert torch.is_grad_enabled()


def test_the_whole_context_can_be_used(model):
    prompt = list(range(TINY.n_positions - 3))
    assert len(list(generate(model, TINY, prompt, max_new_tokens=4))) == 4


@pytest.mark.parametrize(
    ("prompt", "settings", "said"),
    [
        ([], {}, "the prompt is empty"),
        ([1] * 129, {}, "room for 128 positions; try: a shorter prompt"),
        ([1] * 120, {"max_new_tokens": 10}, "room for 128 positions; try: 9 new tokens or fewer"),
        ([1], {"max_new_tokens": 0}, "0 tokens to generate"),
        ([1, 512], {}, "token 512 of the prompt is not in tiny's vocabulary of 512"),
        ([-1], {}, "token -1"),
        ([1], {"temperature": -0.1}, "temperature is -0.1"),
        ([1], {"temperature": float("nan")}, "temperature is nan"),
        ([1] * 9, {"cache": KVCache(TINY, max_tokens=8)}, "room for 8 positions"),
    ],
)
def test_requests_that_make_no_sense(prompt, settings, said):
    forward, calls = table_model(torch.eye(512))
    with pytest.raises(UsageError, match=said):
        generate(forward, TINY, prompt, **{"max_new_tokens": 1, **settings})
    assert calls == []


def test_a_cache_in_use_is_refused(model):
    cache = KVCache(TINY)
    list(generate(model, TINY, PROMPT, max_new_tokens=2, cache=cache))
    with pytest.raises(UsageError, match="holds 5 tokens already"):
        generate(model, TINY, PROMPT, max_new_tokens=2, cache=cache)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_are_an_error(temperature):
    config = GPTConfig("x", 1, 1, 8, vocab_size=9, n_positions=8)

    def forward(idx_BT, cache):
        return torch.full((1, idx_BT.shape[1], 9), float("nan"))

    drawn = generate(forward, config, [1], max_new_tokens=2, temperature=temperature)
    with pytest.raises(FailedError, match="9 of 9 logits are not numbers"):
        next(drawn)
