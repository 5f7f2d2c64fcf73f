# SPDX-License-Identifier: Apache-2.0
"""What auto runs on: chains of every variant, of the same function, as long as they may be."""

from __future__ import annotations

import contextlib

import pytest
import torch

from penstock.fusion import VARIANTS, auto, chain, contest, tuning
from penstock.fusion.contest import Outcome, Sample, sets_of
from penstock.models.configs import get_config
from penstock.models.gpt import PlainParts

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning.forget()
    yield
    tuning.forget()


def stage(*, layers=3, training=False):
    config = get_config("tiny", n_layers=4, dropout=0.0)
    step = auto.Step(config, "fp32", CPU, batch=1, seq_len=8, training=training)
    return auto.Stage(step, layers)


class FakeTimer:
    """Takes the place of the GPU's clock: some ms a block, and counts the blocks that ran."""

    def __init__(self, monkeypatch, block_ms, host_ms=0.0):
        self.ran, self.passes = [], []
        self.block_ms, self.host_ms = block_ms, host_ms
        monkeypatch.setattr(auto, "timed", self)
        forward = chain.Chain.forward

        def counted(itself, x):
            self.ran.append(itself.count)
            return forward(itself, x)

        monkeypatch.setattr(chain.Chain, "forward", counted)

    def __call__(self, step, passes):
        step()
        self.passes.append(passes)
        return Sample(self.block_ms * self.ran[-1], self.host_ms * self.ran[-1])


def test_auto_is_the_baseline_without_a_gpu():
    chosen = auto.choose(get_config("tiny"), dtype="fp32", device="cpu", batch=1, seq_len=8)
    assert chosen.name == "baseline"


@pytest.mark.parametrize("training", [False, True])
def test_every_combination_runs_and_is_the_same_function(training, monkeypatch, caplog):
    FakeTimer(monkeypatch, 1.0)
    made = stage(training=training)
    assert made.sound(sets_of(VARIANTS)) == sets_of(VARIANTS)
    x = torch.randn(1, 8, get_config("tiny").d_model)
    with torch.no_grad():
        wanted = made.chains["baseline"](x)
        for name in sets_of(VARIANTS):
            assert made.chains[name].training is training
            got = made.chains[name](x)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    mine = [dict(c.named_parameters()) for c in made.chains.values()]
    for parameters in mine[1:]:
        assert all(parameters[name] is parameter for name, parameter in mine[0].items())
        assert all(parameter.grad is None for parameter in parameters.values())


def test_a_training_step_goes_back_through_every_block():
    made = stage(training=True)
    seen = []
    step = made.step("dropout_layernorm,ffn_layernorm")
    (made_of,) = made.chains.values()
    for block in made_of.blocks:
        block.attn.qkv.weight.register_hook(lambda grad: seen.append(float(grad.abs().sum())))
    step()
    assert len(seen) == 3
    assert min(seen) > 0.1  # and no rounding errors: all of it went through a LayerNorm


def test_what_gives_another_result_or_fails_is_not_timed(monkeypatch):
    FakeTimer(monkeypatch, 1.0)
    made = stage()
    original = made.step

    def step(name):
        def fails():
            raise RuntimeError("out of shared memory")

        wrong = {"attention_layernorm": fails, "ffn_layernorm": lambda: torch.ones(1, 8, 1)}
        return wrong.get(name, original(name))

    monkeypatch.setattr(made, "step", step)
    good = made.sound(["baseline", *VARIANTS])
    assert good == ["baseline", "dropout_layernorm", "attention_projection"]


@pytest.mark.parametrize(
    ("block_ms", "training", "layers", "passes"),
    [
        (0.27, False, 8, 5),  # 1.5B, batch 1: 48 blocks given at once, and no more
        (1.27, False, 8, 2),  # 13B, batch 1
        (9.5, False, 4, 1),  # 13B, batch 8: 38 ms of 4 blocks
        (6.0, False, 5, 1),
        (1.27, True, 8, 1),  # 1.5B, batch 1: 16 blocks with backward, and no more
        (500.0, True, 4, 1),
    ],
)
def test_a_sample_is_about_as_long_whatever_a_block_takes(
    block_ms, training, layers, passes, monkeypatch
):
    timer = FakeTimer(monkeypatch, block_ms, host_ms=block_ms / 2)
    config = get_config("tiny", n_layers=12, dropout=0.0)
    step = auto.Step(config, "fp32", CPU, batch=1, seq_len=8, training=training)
    made = auto.Stage(step, layers=8)
    made.sound(["baseline", "dropout_layernorm"])
    assert timer.ran[:2] == [2, 2]  # checked on two blocks
    assert (made.layers, made.passes) == (layers, passes)
    sample = made.run("dropout_layernorm")
    assert (timer.ran[-1], timer.passes[-1]) == (layers, passes)
    assert (sample.elapsed_ms, sample.host_ms) == pytest.approx((block_ms, block_ms / 2))


@pytest.mark.parametrize(
    ("free", "training", "layers"),
    [(100 * GIB, False, 8), (4 * GIB, False, 3), (GIB, False, 1), (0, True, 1), (8 * GIB, True, 2)],
)
def test_a_chain_takes_half_of_the_free_memory_at_most(free, training, layers):
    config = get_config("gpt3_13b_5120")  # 0.59 GiB of weights a block
    what = {"dtype": "bf16", "batch": 1, "seq_len": 1024, "training": training}
    assert chain.layers_that_fit(config, **what, free=free) == layers


def test_a_chain_is_no_longer_than_the_model():
    what = {"dtype": "fp32", "batch": 1, "seq_len": 8, "training": False, "free": GIB}
    assert chain.layers_that_fit(get_config("tiny", n_layers=3), **what) == 3


def test_a_chain_is_blocks_and_the_norm_of_a_model():
    config = get_config("tiny", n_layers=3)
    made = chain.random_chain(config, 3, dtype="fp32", device=CPU)
    x = torch.randn(1, 4, config.d_model)
    for count in (3, 2):
        made.count, wanted = count, x
        for block in list(made.blocks)[:count]:
            wanted = block(wanted)
        assert torch.equal(made(x), made.norm(wanted))
    weights = [block.mlp.up.weight for block in made.blocks]
    assert not torch.equal(weights[0], weights[1])
    assert isinstance(chain.chain_like(made, PlainParts(), config), chain.Chain)


def test_the_choice_is_measured_once(monkeypatch):
    config, asked = get_config("tiny"), []

    def measure(step):
        asked.append(step)
        return Outcome("ffn_layernorm")

    monkeypatch.setattr(auto, "measure", measure)
    monkeypatch.setattr(tuning.torch.cuda, "get_device_name", lambda device: "a GPU")
    what = {"dtype": "fp32", "device": "cuda:0", "batch": 1, "seq_len": 8}
    for _ in range(2):
        chosen = auto.choose(config, **what, recompute=2)
        assert (chosen.name, chosen.recompute) == ("ffn_layernorm", 2)
    assert len(asked) == 1
    auto.choose(config, **what, training=True)
    assert [step.training for step in asked] == [False, True]


@pytest.mark.slow
def test_measuring_takes_what_memory_there_is(monkeypatch):
    cuda = auto.torch.cuda
    monkeypatch.setattr(cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(cuda, "empty_cache", lambda: None)
    config = get_config("tiny", n_layers=6, dropout=0.0)
    what = {"dtype": "fp32", "device": "cpu", "batch": 1, "seq_len": 8}
    timer = FakeTimer(monkeypatch, 1.0)
    for free, layers in ((GIB, 6), (0, 1)):
        monkeypatch.setattr(cuda, "mem_get_info", lambda free=free: (free, GIB))
        timer.ran.clear()
        outcome = auto.measure(auto.Step(config, **what, training=True))
        assert outcome.name == "baseline"  # all take the same time
        assert len(outcome.heats) == 2
        assert max(timer.ran) == layers


def test_the_first_pass_is_not_timed(monkeypatch):
    """A GPU that takes 3 ms a pass, behind a host that takes 2 to give it one."""
    host, gpu, ran = [0.0], [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = max(host[0], gpu[0])

        def synchronize(self):
            host[0] = max(host[0], self.at)

        def elapsed_time(self, other):
            return other.at - self.at

    def step():
        ran.append(host[0])
        host[0] += 2.0 if len(ran) > 1 else 7.0
        gpu[0] = max(host[0], gpu[0]) + 3.0

    monkeypatch.setattr(chain.torch.cuda, "Event", Event)
    monkeypatch.setattr(chain.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(chain.time, "perf_counter", lambda: host[0] / 1e3)
    assert chain.timed(step, 4) == Sample(3.0, pytest.approx(2.0))
    assert len(ran) == 5


def test_a_contest_on_a_stage(monkeypatch):
    """All of it but a GPU: the chain with fewest blocks of one kind in it wins."""
    made = stage()
    timer = FakeTimer(monkeypatch, 1.0)

    def timed(step, passes):
        sample = timer(step, passes)
        share = 0.9 if step is made.step("ffn_layernorm") else 1.0
        return Sample(sample.elapsed_ms * share, 0.1)

    monkeypatch.setattr(auto, "timed", timed)
    outcome = contest.decide(made.run, made.sound)
    assert outcome.name == "ffn_layernorm"
    first, second = outcome.figures()
    assert first["candidates"]["ffn_layernorm"]["elapsed_ms"] == pytest.approx(0.9)
    assert next(iter(second["candidates"])) == "ffn_layernorm"
    assert second["noise"] == contest.LEAST_NOISE
