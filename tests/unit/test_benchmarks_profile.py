# SPDX-License-Identifier: Apache-2.0
"""Shares of a sampling profile, from the lines that the sampler writes."""

from __future__ import annotations

import pytest

ENGINE, PROXY = "/a/libpenstock.so", "/a/preload/libcuda.so.1"
DRIVER, TORCH = "/usr/lib/libcuda.so.580.1", "/t/libtorch_cpu.so"


@pytest.fixture
def profile(script):
    return script("launch_profile")


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
