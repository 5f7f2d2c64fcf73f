# SPDX-License-Identifier: Apache-2.0
"""The ideal in the document of a run: on a GPU, and none on the emulated one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from penstock.runner.figures import Steps
from penstock.runner.request import Request
from penstock.runner.result import Outcome, document

MB = 10**6


def document_of(device, **changes):
    stats = {
        "gpu_memory_bytes": 600 * MB,
        "weight_bytes": 900 * MB,
        "paged_bytes": 800 * MB,
        "pinned_bytes": 100 * MB,
        "budget": 540 * MB,
        "device_bytes": 500 * MB,
        "peak_device_bytes": 500 * MB,
        "hit_ratio": 0.5,
        "link_gb_per_s": 10.0,
        "compute_ms": 20.0,
    }
    steps = Steps([50.0, 40.0, 60.0], [MB] * 3, [0] * 3, [8] * 3)
    outcome = Outcome(steps, torch.zeros(1), stats=stats, driver_peak=560 * MB)
    config = SimpleNamespace(name="tiny", n_positions=64)
    subject = SimpleNamespace(config=config, dtype="float32", source="seed 0")
    where = SimpleNamespace(name=device, label=device)
    return document(Request(seq_len=8, **changes), subject, where, outcome, None, None)


def test_a_step_is_held_against_the_ideal_of_what_must_cross():
    # 900 MB of weights, and 540 of the budget left beside what else was in use, at 10 GB/s.
    found = document_of("cuda:0")
    assert (found["verb"], found["schema_version"]) == ("gpt", 1)
    assert found["ideal_ms"] == pytest.approx(36.0)
    assert found["ratio_to_ideal"] == pytest.approx(50 / 36)
    assert document_of("cuda:0", memory="resident")["ratio_to_ideal"] == 1.0


@pytest.mark.parametrize("memory", ["vmm", "managed", "resident"])
def test_the_emulated_gpu_has_no_ideal(memory):
    found = document_of("emulated", memory=memory)
    assert (found["ideal_ms"], found["ratio_to_ideal"]) == (None, None)
