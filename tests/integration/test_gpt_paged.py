# SPDX-License-Identifier: Apache-2.0
"""Paged logits are those of the resident model, bit for bit, whatever the budget and the dtype.

On the emulated GPU, where a page that is not there is a crash and a stale one shows in the bits.
"""

from __future__ import annotations

import re

import pytest
import torch

import penstock.paging.managed
from penstock import attachments
from penstock.config import Settings
from penstock.errors import OutOfMemory
from penstock.models.configs import get_config
from penstock.models.weights import load_model, synthetic_loader
from penstock.report.progress import Progress
from penstock.runner.request import Request, checked
from penstock.runner.result import sha256
from penstock.runner.session import run
from penstock.units import KIB, MIB, parse_size

DTYPES = ("float32", "float16", "bfloat16")
QUIET = Progress(None)
MADE = 48 * KIB  # what operators of the tiny model make, and have at one time
SMALL = {"model": "tiny", "emulated_granularity": "16KiB", "emulated_capacity": "8MiB"}


def gpt(**changes):
    """Run a request on the emulated GPU; keywords of Settings go there."""
    fields = Settings.__dataclass_fields__
    settings = {name: changes.pop(name) for name in list(changes) if name in fields}
    request = Request(settings=Settings(**{"device": "emulated", **settings}), **changes)
    return run(checked(request), progress=QUIET, on_text=lambda piece: None)


def tiny(**changes):
    """Small as it is, with pages of 16 KiB it has 54 of them."""
    return gpt(**{**SMALL, "seq_len": 8, **changes})


def resident_sha256(name, dtype, *, batch=1, seq_len=8, seed=0):
    """The expected bytes by way of plain torch, with nothing of the runner in it."""
    config = get_config(name)
    model = load_model(config, synthetic_loader(config, seed), dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, config.vocab_size, (batch, seq_len), generator=generator)
    with torch.no_grad():
        return sha256(model(tokens))


def smallest(**changes):
    """The smallest budget that works, as the refusal of a smaller one tells it."""
    with pytest.raises(OutOfMemory, match="smallest that works") as caught:
        gpt(**changes)
    told = re.search(r'gpu_memory="(\w+)"', caught.value.remedy)
    assert told is not None
    assert attachments() == []
    assert caught.value.needed_bytes <= parse_size(told[1])
    return caught.value.needed_bytes


@pytest.fixture(scope="module")
def tiny_smallest():
    return {dtype: smallest(**SMALL, dtype=dtype, gpu_memory="32KiB") for dtype in DTYPES}


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 2.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_in_every_dtype_and_budget(dtype, share, tiny_smallest):
    weights = get_config("tiny").weight_bytes(dtype)
    budget = max(tiny_smallest[dtype] + MADE, int(share * weights))
    result = tiny(dtype=dtype, gpu_memory=str(budget), steps=3, check=True)
    assert result["check"]["equal"], result["check"]
    assert result["check"]["outputs"] == 3  # two warm-ups and the last step
    assert result["output_sha256"] == resident_sha256("tiny", dtype)
    assert result["peak_device_bytes"] <= budget
    assert result["counters"]["mismatches"] == 0
    if share < 1:
        assert all(moved > 0 for moved in result["bytes_in"])
    else:
        assert result["bytes_in"] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "budget"), [("float32", "156MiB"), ("float16", "180MiB"), ("bfloat16", "1GiB")]
)
def test_gpt2_small(dtype, budget):
    result = gpt(model="gpt2_small", dtype=dtype, gpu_memory=budget, seq_len=4, steps=1, warmups=1)
    assert result["output_sha256"] == resident_sha256("gpt2_small", dtype, seq_len=4)
    assert result["peak_device_bytes"] <= parse_size(budget)
    assert all(moved == 0 for moved in result["bytes_out"])  # clean pages are dropped, not copied


def test_one_byte_less_than_the_smallest_is_refused(tiny_smallest):
    barely = tiny_smallest["float32"]
    assert smallest(**SMALL, gpu_memory=str(barely - 1)) == barely


def test_a_step_moves_only_what_is_missing():
    budget, largest = 450 * MIB, get_config("gpt2_small").largest_module_bytes("float32")
    result = gpt(model="gpt2_small", gpu_memory=str(budget), seq_len=4, steps=3)
    weights = result["weight_bytes"]
    assert weights == get_config("gpt2_small").weight_bytes("float32")
    assert max(result["bytes_in"]) <= 1.10 * (weights - budget + largest)
    assert result["peak_device_bytes"] <= budget
    assert result["hit_ratio"] > 0.5


@pytest.mark.parametrize("seed", range(4))
def test_delays_change_no_bit(seed):
    result = tiny(
        gpu_memory="300KiB",
        emulated_delay_us=2000,
        emulated_seed=seed,
        steps=3,
        check=True,
        batch=2,
    )
    assert result["check"]["equal"], result["check"]


def test_strict_safety_chunk_size_and_look_ahead_change_no_bit():
    plain = tiny(gpu_memory="400KiB", steps=2)
    other = tiny(
        gpu_memory="400KiB", steps=2, safety="strict", chunk_size="32KiB", look_ahead="64KiB"
    )
    assert other["output_sha256"] == plain["output_sha256"]
    assert other["counters"]["pages"] < plain["counters"]["pages"]


def test_what_crosses_the_link_encoded_changes_no_bit():
    options = {"gpu_memory": "400KiB", "chunk_size": "32KiB", "dtype": "bfloat16", "steps": 2}
    plain, encoded = (tiny(**options, compress=how) for how in ("off", "bf16"))
    assert encoded["output_sha256"] == plain["output_sha256"]
    assert plain["counters"]["encoded_bytes"] == 0
    assert encoded["counters"]["code_bytes"] < 0.8 * encoded["counters"]["encoded_bytes"] > 0


def test_every_option_reaches_the_attachment(monkeypatch):
    real, asked = penstock.paging.attach, {}

    def attach(model, **arguments):
        asked.update(arguments)
        return real(model, **arguments)

    monkeypatch.setattr("penstock.paging.attach", attach)
    options = {"gpu_memory": "400KiB", "chunk_size": "32KiB", "look_ahead": "48KiB"}
    options |= {"safety": "strict", "compress": "auto"}
    tiny(**options, host_memory="50MiB", emulated_seed=3, steps=1)
    emulated = asked.pop("emulated")
    assert asked.pop("load") is not None
    assert asked == {**options, "host_memory": "50MiB", "device": "emulated"}
    assert emulated == {"granularity": 16384, "capacity": 8 << 20, "seed": 3, "max_delay_us": 0}


def test_every_option_reaches_managed_memory(monkeypatch):
    real, asked = penstock.paging.managed.attach_managed, {}

    def attach_managed(model, **arguments):
        asked.update(arguments)
        return real(model, **arguments)

    monkeypatch.setattr("penstock.paging.managed.attach_managed", attach_managed)
    options = {"num_streams": 5, "prefetch": True, "allow_oversubscription": True}
    tiny(memory="managed", gpu_memory="500KiB", host_memory="50MiB", steps=1, **options)
    assert asked["emulated"]["granularity"] == 16384
    assert asked == {
        **options,
        "load": asked["load"],
        "emulated": asked["emulated"],
        "gpu_memory": "500KiB",
        "host_memory": "50MiB",
        "device": "emulated",
    }


def test_the_seed_decides_weights_and_inputs():
    first, again, other = (tiny(gpu_memory="400KiB", steps=1, seed=seed) for seed in (1, 1, 2))
    assert first["output_sha256"] == again["output_sha256"] != other["output_sha256"]


def test_resident_is_a_plain_model():
    result = tiny(memory="resident", steps=2, batch=3)
    assert result["output_sha256"] == resident_sha256("tiny", "float32", batch=3)
    assert result["bytes_in"] == result["bytes_out"] == [0, 0]
    assert result["gpu_memory_bytes"] is None
    assert (result["hit_ratio"], result["ratio_to_ideal"]) == (1.0, None)


def test_odd_shapes():
    result = gpt(
        model="tiny_odd",
        emulated_granularity="4KiB",
        gpu_memory=str(250 * KIB),
        batch=2,
        steps=2,
        check=True,
    )
    assert result["seq_len"] == 48
    assert result["check"]["equal"], result["check"]
