# SPDX-License-Identifier: Apache-2.0
"""Shares of a sampling profile, from the lines that the sampler writes; pauses of the link."""

from __future__ import annotations

import pytest

ENGINE, PROXY = "/a/libpenstock.so", "/a/preload/libcuda.so.1"
DRIVER, TORCH = "/usr/lib/libcuda.so.580.1", "/t/libtorch_cpu.so"


@pytest.fixture
def profile(script):
    return script("run_profile")


def line(*frames):
    return "".join(f" 10|{file}|{name}" for file, name in frames) + "\n"


def test_a_samples_place_is_its_innermost_frame_and_what_called_counts_too(profile, tmp_path):
    hook = (PROXY, "on_launch")
    copying = [(DRIVER, "cuMemcpy"), (ENGINE, "penstock::place"), (ENGINE, "penstock::announce")]
    samples = tmp_path / "samples"
    samples.write_text(
        line(*copying, hook, (TORCH, "add"))
        + line((ENGINE, "penstock::announce"), hook, (TORCH, "add"))
        + line((DRIVER, "cuLaunchKernel"), hook, (TORCH, "add"))  # the program's own call
        + line((TORCH, "add")),
        encoding="utf-8",
    )
    found = profile.shares(samples)
    assert found["samples"] == 4
    assert found["modules"] == {"libcuda": 0.5, "engine": 0.25, "libtorch_cpu.so": 0.25}
    assert found["inclusive"] == {"on_launch": 0.75, "announce": 0.5, "place": 0.25}
    assert found["calls"] == {"cuMemcpy": 0.25}


def test_a_pause_of_the_link_is_put_down_to_what_ended_last_before_it_ended(profile):
    copy, digest = "Memcpy HtoD (Pinned -> Device)", "penstock_compare"
    found = profile.pauses(
        [
            (0.0, 1000.0, copy),
            (1001.0, 2000.0, copy),  # right behind
            (1500.0, 2100.0, copy),  # beside it
            (2090.0, 2390.0, "gemm"),
            (2200.0, 2395.0, digest),
            (2400.0, 3000.0, copy),  # the digest held it up
            (3010.0, 3090.0, "gemm"),
            (3100.0, 3200.0, copy),  # a kernel did
            (3250.0, 3300.0, copy),  # nobody knows who
            (3300.0, 9000.0, "gemm"),
            (3400.0, 3500.0, "Memcpy DtoH (Device -> Pinned)"),
        ]
    )
    assert found["copies"] == 6
    assert found["from_first_to_last_ms"] == 3.3
    assert found["busy_ms"] == pytest.approx(1.0 + 0.999 + 0.1 + 0.6 + 0.1 + 0.05)
    assert found["short_pauses_ms"] == 0.001
    assert found["pauses"] == {
        "digest": {"count": 1, "ms": 0.3},
        "kernel": {"count": 1, "ms": 0.1},
        "nothing": {"count": 1, "ms": 0.05},
    }
    assert found["long"] == []
    assert profile.pauses([(0.0, 1.0, "gemm")]) == {"copies": 0}


def test_of_a_long_pause_it_is_told_what_the_device_did(profile):
    copy = "Memcpy HtoD (Pinned -> Device)"
    found = profile.pauses(
        [
            (0.0, 1000.0, copy),
            (500.0, 4500.0, "gemm"),  # for 2 ms of the pause
            (2000.0, 2300.0, "gelu"),
            (3000.0, 3100.0, copy),
            (5000.0, 5100.0, copy),  # 1.4 ms of gemm before
            (7000.0, 7100.0, copy),  # nothing
        ]
    )
    assert found["long"] == [
        {"ms": 2.0, "kernel": "gemm", "for_ms": 2.0, "of_its_ms": 4.0},
        {"ms": 1.9, "kernel": "gemm", "for_ms": 1.4, "of_its_ms": 4.0},
        {"ms": 1.9, "kernel": "", "for_ms": 0.0, "of_its_ms": 0.0},
    ]
