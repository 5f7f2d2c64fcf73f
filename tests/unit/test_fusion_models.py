# SPDX-License-Identifier: Apache-2.0
"""Whole models of every combination: logits, gradients, dropout, checkpointing, paging."""

from __future__ import annotations

import pytest
import torch
from error_rule import check_rule
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from penstock.fusion import VARIANTS, FusedParts, Fusion, parse
from penstock.fusion.contest import sets_of
from penstock.fusion.modules import Pending
from penstock.fusion.parts import parts_for
from penstock.models.configs import get_config
from penstock.models.gpt import GPT, build_on_meta
from penstock.paging import attach

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
COMBINATIONS = sets_of(VARIANTS)[1:]


def tokens(config, batch=2, count=13):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (batch, count), generator=generator)


def random_state(config):
    """Weights with norms and biases that are not ones and zeros."""
    torch.manual_seed(0)
    model = GPT(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model.state_dict()


def built(config, state, fusion, dtype=torch.float32):
    model = GPT(config, parts_for(fusion))
    model.load_state_dict(state)
    return model.to(dtype)


def logits_and_gradients(model, idx):
    logits = model(idx)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return [logits, *torch.autograd.grad(wide.sin().sum(), list(model.parameters()))]


@pytest.fixture(scope="module", params=["tiny", "tiny_odd"])
def exact(request):
    config = get_config(request.param, dropout=0.0)
    state = random_state(config)
    model = built(config, state, Fusion(), torch.float64)
    plain = {
        dtype: logits_and_gradients(built(config, state, Fusion(), dtype), tokens(config))
        for dtype in DTYPES
    }
    return config, state, logits_and_gradients(model, tokens(config)), plain


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMBINATIONS)
def test_logits_and_gradients_keep_to_the_rule(name, dtype, exact):
    config, state, truth, plain = exact
    fusion = parse(name, recompute=COMBINATIONS.index(name) % 3)
    model = built(config, state, fusion, dtype)
    assert list(model.state_dict()) == list(state)
    names = ["logits", *(name for name, _ in model.named_parameters())]
    got = logits_and_gradients(model, tokens(config))
    with torch.no_grad():
        got.append(model.eval()(tokens(config)))
    for what, mine, theirs, wanted in zip(
        [*names, "without a graph"],
        got,
        [*plain[dtype], plain[dtype][0]],
        [*truth, truth[0]],
        strict=True,
    ):
        assert mine.dtype == dtype
        check_rule(mine, theirs, wanted, what)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_dropout_is_on_in_training_and_off_in_evaluation(name):
    config = get_config("tiny", dropout=0.4)
    state, idx = random_state(config), tokens(config)
    model, plain = built(config, state, parse(name)), built(config, state, Fusion())
    first, second = model(idx), model(idx)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    a = model(idx)
    torch.manual_seed(3)
    assert torch.equal(a, model(idx))
    for _ in range(2):  # there and back
        torch.testing.assert_close(model.eval()(idx), plain.eval()(idx), rtol=1e-4, atol=1e-5)
        assert not torch.equal(model.train()(idx), first)


def test_dropout_of_every_variant_has_the_spread_of_the_baseline():
    """A variant that forgot one of the places, or scaled it wrongly, has another variance."""
    config = get_config("tiny", dropout=0.3)
    state, idx = random_state(config), tokens(config, batch=8, count=8)

    def spread(fusion):
        model = built(config, state, fusion)
        with torch.no_grad():
            torch.manual_seed(1)
            runs = torch.stack([model(idx) for _ in range(40)])
        return float(runs.var(0).mean())

    wanted = spread(Fusion())
    for name in (*VARIANTS, ",".join(VARIANTS)):
        assert spread(parse(name)) == pytest.approx(wanted, rel=0.08), name


@pytest.mark.parametrize("name", [*VARIANTS, ",".join(VARIANTS)])
def test_gradient_checkpointing_gives_the_same_gradients(name):
    config = get_config("tiny", dropout=0.2)
    model = built(config, random_state(config), parse(name))
    idx = tokens(config)

    def gradients(run):
        torch.manual_seed(5)
        stream = model.token_embedding(idx)
        for block in model.blocks:
            stream = run(block, stream)
        out = model.final_norm(stream).square().sum()
        return torch.autograd.grad(out, list(model.blocks.parameters()))

    plain = gradients(lambda block, stream: block(stream))
    again = gradients(lambda block, stream: checkpoint(block, stream, use_reentrant=False))
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", [*VARIANTS, ",".join(VARIANTS)])
def test_a_compiler_takes_a_block_whole(name, training):
    """aot_eager is all of the compiler but code generation, which takes minutes on a CPU."""
    config = get_config("tiny", dropout=0.0)
    model = built(config, random_state(config), parse(name)).train(training)
    idx = tokens(config)
    wanted = logits_and_gradients(model, idx)
    torch._dynamo.reset()
    count = CompileCounterWithBackend("aot_eager")
    for block in model.blocks:
        block.compile(backend=count, fullgraph=True, dynamic=False)
    for mine, theirs in zip(logits_and_gradients(model, idx), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    # The first block takes a tensor; the others may take a stream with something pending.
    assert count.frame_count <= 2


@pytest.mark.parametrize("name", COMBINATIONS)
def test_paged_logits_are_the_resident_models_bit_for_bit(name):
    config = get_config("tiny")
    state, idx = random_state(config), tokens(config)
    resident = built(config, state, parse(name)).eval()
    attached = attach(
        build_on_meta(config, parts=FusedParts(name)),
        gpu_memory="450KiB",
        device="emulated",
        load=lambda leaf, destination: destination.copy_(state[leaf]),
        emulated={"granularity": 16384, "max_delay_us": 200},
    )
    try:
        with torch.no_grad():
            wanted = resident(idx)
            for _ in range(4):
                assert torch.equal(attached.model(idx), wanted)
        assert attached.stats().iteration_bytes_in > 0
    finally:
        attached.detach(keep=False)


def test_what_passes_between_blocks_is_a_stream():
    config = get_config("tiny")
    model = built(config, random_state(config), parse("dropout_layernorm"))
    stream = model.blocks[0](torch.randn(1, 4, config.d_model))
    assert isinstance(stream, Pending)
    assert stream.bias_D is model.blocks[0].mlp.down.bias
    assert stream.p == config.dropout


def test_one_weight_has_one_copy_in_memory():
    config = get_config("tiny")
    plain = build_on_meta(config)
    fused = build_on_meta(config, parts=FusedParts(",".join(VARIANTS)))
    assert list(fused.buffers()) == []
    for (name, one), (other_name, other) in zip(
        plain.named_parameters(), fused.named_parameters(), strict=True
    ):
        assert (name, one.shape, one.dtype) == (other_name, other.shape, other.dtype)
