# SPDX-License-Identifier: Apache-2.0
"""Models that nobody here wrote run within half of what they weigh, with the resident bits.

All but Mamba, whose scan on the CPU has most of its weights' size in use at one time.

The architectures are those of benchmarks/one_budget.py, with a few layers of width 64.
"""

from __future__ import annotations

import pytest
import torch

from penstock.paging import attach
from penstock.units import KIB, MIB

pytest.importorskip("transformers")

PAGE = 4 * KIB
NAMES = """
    llama qwen2 gemma phi opt bloom mamba t5 bert vit clip whisper mixtral qwen3-moe
    deepseek-v2-lite sdxl-unet flux qwen-image wan
""".split()
DIFFUSERS = ("sdxl-unet", "flux", "qwen-image", "wan")
SHARES = {"mamba": 1.25}  # of the weights, for all that is on the device
SHAPES = ((2, 8), (1, 16), (2, 8))  # batch and length of each pass


@pytest.fixture
def held_out(script):
    return script("models.held_out")


@pytest.fixture(params=NAMES)
def case(request, held_out):
    """An architecture, its resident model, and the inputs of a few passes."""
    if request.param in DIFFUSERS:
        pytest.importorskip("diffusers")
    subject = held_out.subject(request.param, small=True)
    resident = subject.resident("cpu")
    inputs = [subject.make_inputs(resident, *shape, "cpu") for shape in SHAPES]
    return subject, resident, inputs, held_out.outputs


def page(subject, resident):
    """The same model, filled by attach(), within half of what it weighs."""
    weight = sum(parameter.nbytes for parameter in resident.parameters())
    return attach(
        subject.build("meta"),
        gpu_memory=int(weight * SHARES.get(subject.name, 1 / 2)),
        load=subject.loader("cpu"),
        device="emulated",
        emulated={"granularity": PAGE, "capacity": 16 * MIB},
    )


def tokens(model, inputs):
    prompt = {key: value for key, value in inputs.items() if not key.startswith("decoder")}
    return model.generate(**prompt, do_sample=False, max_new_tokens=8)


@torch.no_grad()
def test_same_bits_within_half_of_the_weights(case):
    subject, resident, inputs, outputs = case
    with page(subject, resident) as attached:
        for given in inputs:
            want, got = outputs(resident(**given)), outputs(attached.model(**given))
            assert want
            assert all(map(torch.equal, got, want))
        if subject.generates:
            want = tokens(resident, inputs[0])
            assert torch.equal(tokens(attached.model, inputs[0]), want)
        stats = attached.stats()
        assert stats.passes >= len(inputs)
        assert stats.bytes_in > stats.gpu_memory_bytes  # it did page
        assert stats.peak_device_bytes <= attached.budget
