# SPDX-License-Identifier: Apache-2.0
"""A result as text: from the document alone, every figure with its unit."""

from __future__ import annotations

from penstock.runner.show import EMULATED, lines

RESULT = {
    "model": "gpt3_6.7b",
    "device": "cuda:0",
    "memory": "vmm",
    "gpu_memory_bytes": 8 << 30,
    "weight_bytes": 13_720_690_688,
    "step_ms": [136.0, 134.0, 135.0],
    "tokens_per_second": 7585.2,
    "bytes_in": [6_400_000_000] * 3,
    "bytes_out": [0, 0, 0],
    "peak_device_bytes": (8 << 30) - (9 << 20),
    "hit_ratio": 0.5338,
    "link_gb_per_s": 55.2,
    "ideal_ms": 131.4,
    "ratio_to_ideal": 1.0274,
    "output_sha256": "00",
    "device_name": "NVIDIA H200",
    "dtype": "float16",
    "batch": 1,
    "seq_len": 1024,
    "weights": "seed 0",
    "explain": "why",
    "bytes_counted": True,
    "check": None,
    "text": None,
}
CHECK = {"equal": True, "max_abs_diff": 0.0, "outputs": 3, "different": 0}
TEXT = {"prompt": "a", "text": "b", "tokens": 7, "token_ms": [1.0, 2.0]}


def shown(**changes):
    return "\n".join(lines({**RESULT, **changes}))


def test_timed_steps():
    assert shown() == (
        "gpt3_6.7b, 1 x 1,024 tokens a step, float16, vmm on NVIDIA H200\n"
        "\n"
        "weights          12.8 GiB, seed 0\n"
        "budget           8.00 GiB, 63% of the weights\n"
        "step             135 ms, p10-p90 134 to 136, 3 steps\n"
        "tokens a second  7,585\n"
        "moved a step     5.96 GiB in, 0 B out\n"
        "hit ratio        0.534\n"
        "step to ideal    1.027 x the ideal of 131 ms\n"
        "peak             7.99 GiB of device memory\n"
        "\n"
        "why"
    )


def test_the_emulated_gpu_says_what_its_times_are_worth():
    assert shown(device="emulated").endswith(EMULATED)
    assert EMULATED not in shown()


def test_budgets():
    assert "16.0 GiB, more than the weights" in shown(gpu_memory_bytes=16 << 30)
    assert "none: everything is resident" in shown(gpu_memory_bytes=None)


def test_no_bound_no_ratio():
    assert "ideal" not in shown(ideal_ms=None, ratio_to_ideal=None)


def test_what_was_not_counted_is_not_shown():
    text = shown(bytes_counted=False, peak_device_bytes=None)
    assert "moved" not in text
    assert "hit ratio" not in text
    assert "peak" not in text


def test_checks():
    assert "check            ok: 3 outputs equal" in shown(check=CHECK)
    failed = {**CHECK, "equal": False, "different": 2}
    assert "failed: 2 of 3 outputs differ" in shown(check=failed)


def test_text_alone_and_beside_timed_steps():
    alone = shown(text=TEXT, seq_len=None, step_ms=[1.0])
    assert "one token a step" in alone
    assert "1 step" in alone
    assert alone.count(" ms, p10-p90") == 1
    beside = shown(text=TEXT)
    assert "text             7 tokens, 1.50 ms, p10-p90 1.00 to 2.00, 2 steps" in beside
