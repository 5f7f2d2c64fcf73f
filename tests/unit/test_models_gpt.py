# SPDX-License-Identifier: Apache-2.0
"""The network: what it registers, causality, the KV cache, limits of length."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from penstock.errors import UsageError
from penstock.models.configs import CONFIGS, get_config
from penstock.models.gpt import GPT, KVCache, build_on_meta, torch_dtype
from penstock.models.weights import load_model, synthetic_loader

TINY = get_config("tiny")


def tiny_model(name="tiny", dtype="float32", **changes):
    config = get_config(name, **changes)
    return load_model(config, synthetic_loader(config, 3), dtype=dtype)


def tokens(config, batch, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (batch, count), generator=generator)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.startswith(("gpt", "tiny"))])
@pytest.mark.parametrize("tied", [False, True])
def test_on_meta_it_has_the_shapes_of_its_config_and_no_buffer(name, tied):
    config = get_config(name, tied=tied)
    model = build_on_meta(config, dtype="bf16")
    state = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert list(state.items()) == list(config.parameter_shapes().items())
    assert sum(p.numel() for p in model.parameters()) == config.parameter_count()
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}
    assert list(model.buffers()) == []
    assert (model.lm_head.weight is model.token_embedding.weight) == tied
    assert not model.training


def test_modules_run_in_the_order_of_the_config_and_use_only_their_own_parameters():
    model = tiny_model()
    running: list[str] = []
    order: list[str] = []

    def before(name):
        def hook(module, args):
            running.append(name)
            order.append(name)

        return hook

    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            module.register_forward_pre_hook(before(name))
            module.register_forward_hook(lambda *_: running.pop() and None)

    owner = {
        parameter.data_ptr(): name.rpartition(".")[0]
        for name, parameter in model.named_parameters()
    }

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            for value in torch.utils._pytree.tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor) and value.data_ptr() in owner:
                    assert running == [owner[value.data_ptr()]], func
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Watch():
        model(tokens(TINY, 2, 9))
    assert order == list(TINY.module_parameter_counts())


def test_no_token_sees_a_later_one():
    model = tiny_model()
    a_BT = tokens(TINY, 1, 32)
    b_BT = a_BT.clone()
    b_BT[0, 20] = (b_BT[0, 20] + 1) % TINY.vocab_size
    with torch.no_grad():
        a_BTV, b_BTV = model(a_BT), model(b_BT)
    torch.testing.assert_close(a_BTV[:, :20], b_BTV[:, :20])
    assert not torch.allclose(a_BTV[:, 20], b_BTV[:, 20])


@pytest.mark.parametrize("name", ["tiny", "tiny_odd"])
@pytest.mark.parametrize("pieces", [[1] * 40, [39, 1], [10, 1, 1, 18, 10], [40]])
def test_a_cache_changes_nothing(name, pieces):
    model = tiny_model(name)
    idx_BT = tokens(model.config, 2, 40)
    cache = KVCache(model.config, batch=2, max_tokens=40)
    with torch.no_grad():
        whole_BTV = model(idx_BT)
        parts = [model(part_BT, cache) for part_BT in idx_BT.split(pieces, dim=1)]
    assert cache.length == 40
    torch.testing.assert_close(torch.cat(parts, dim=1), whole_BTV, atol=2e-6, rtol=1e-4)


def test_a_cache_can_be_used_again_and_says_its_size():
    model = tiny_model()
    cache = KVCache(TINY, max_tokens=16, dtype=torch.float16)
    assert cache._kv.nbytes == 2 * TINY.n_layers * 16 * TINY.d_model * 2
    cache = KVCache(TINY, max_tokens=16)
    with torch.no_grad():
        first = model(tokens(TINY, 1, 16), cache)
        with pytest.raises(UsageError, match="17 tokens do not fit in a cache of 16"):
            model(tokens(TINY, 1, 1), cache)
        assert cache.length == 16
        cache.reset()
        again = model(tokens(TINY, 1, 16), cache)
    assert torch.equal(first, again)
    with pytest.raises(UsageError, match="128 positions"):
        KVCache(TINY, max_tokens=129)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 77, 128])
def test_every_length_and_dtype(dtype, count):
    model = tiny_model(dtype=dtype)
    with torch.no_grad():
        logits_BTV = model(tokens(TINY, 3, count))
    assert logits_BTV.shape == (3, count, TINY.vocab_size)
    assert logits_BTV.dtype == torch_dtype(dtype)
    assert torch.isfinite(logits_BTV).all()


def test_lengths_that_make_no_sense():
    model = tiny_model()
    with pytest.raises(UsageError, match="129 tokens, but tiny has 128 positions"):
        model(tokens(TINY, 1, 129))
    with pytest.raises(UsageError, match=r"shape \(1, 0\)"):
        model(tokens(TINY, 1, 0))
    with pytest.raises(UsageError, match=r"shape \(5,\)"):
        model(tokens(TINY, 1, 5)[0])


def test_dropout_is_for_training_only():
    model = tiny_model()
    idx_BT = tokens(TINY, 1, 64)
    with torch.no_grad():
        assert torch.equal(model(idx_BT), model(idx_BT))
        model.train()
        assert not torch.equal(model(idx_BT), model(idx_BT))
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 1 + 2 * TINY.n_layers


def test_every_parameter_gets_a_gradient():
    model = GPT(get_config("tiny_odd"))
    model(tokens(model.config, 2, 48)).float().logsumexp(-1).mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
