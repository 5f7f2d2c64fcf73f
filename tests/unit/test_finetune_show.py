# SPDX-License-Identifier: Apache-2.0
"""The text of a result: what ran, what it took, and what its figures are worth."""

from __future__ import annotations

import pytest

from penstock.finetune.show import OFFLOADED, REPLAYED, lines

GIB = 1 << 30


def result(**changes):
    document = {
        **{"model": "opt-1.3b", "strategy": "LR", "batch": 32, "seq_len": 1024, "gpus": 1},
        **{"allocator": "stitch", "device_name": "NVIDIA H200", "engine": "single"},
        **{"parameters": 1000, "trained_parameters": 250, "loss": [3.0, 2.5], "evaluations": []},
        **{"step_ms": [900.0, 300.0], "timed_from": 1, "tokens_per_second": 109226.0},
        **{"peak_requested_bytes": 24 * GIB, "peak_active_bytes": 25 * GIB, "utilisation": 0.96},
        **{"peak_reserved_bytes": 25 * GIB, "memory_figures": "allocator", "memory": "resident"},
    }
    return {**document, **changes}


def test_a_run_on_a_gpu():
    assert list(lines(result())) == [
        "opt-1.3b, LR, 32 x 1,024 tokens a step, stitch on NVIDIA H200",
        "",
        "parameters       1,000, 25.00% trained",
        "loss             3.0000 to 2.5000 in 2 steps",
        "step             300 ms, p10-p90 300 to 300, 1 step",
        "tokens a second  109,226",
        "requested        24.0 GiB at the peak",
        "active           25.0 GiB",
        "reserved         25.0 GiB, utilisation 96.0%",
    ]


def test_a_run_beyond_the_budget_says_what_moved():
    paged = result(
        memory="paged",
        budget_bytes=9 * GIB,
        counters={"weight_bytes": 6 * GIB, "state_bytes": 12 * GIB},
        bytes_in=[0, 11 * GIB],
        bytes_out=[0, 10 * GIB],
        ideal_ms=250.0,
        ratio_to_ideal=1.2,
    )
    text = "\n".join(lines(paged))
    budget = "9.00 GiB for everything; weights and optimizer state are 18.0 GiB"
    assert f"\nbudget           {budget}\n" in text
    assert "\nmoved a step     11.0 GiB in, 10.0 GiB out\n" in text
    assert "\nstep to ideal    1.200 x the ideal of 250 ms\n" in text
    paged["counters"]["state_bytes"] = 0  # it fits, and is torch's
    assert "for everything; weights are 6.00 GiB\n" in "\n".join(lines(paged))


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({}, REPLAYED),
        ({"strategy": "RO"}, REPLAYED),
        ({"strategy": "RO", "engine": "fsdp"}, OFFLOADED),
        ({"strategy": "R", "engine": "fsdp"}, REPLAYED),
    ],
)
def test_what_replayed_figures_are_worth(changes, last):
    assert list(lines(result(memory_figures="replayed", **changes)))[-1] == last
