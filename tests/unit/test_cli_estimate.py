# SPDX-License-Identifier: Apache-2.0
"""``penstock estimate``: the figures follow from the shape, and the remedy works."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.estimate import LINK_GB_PER_S, Work, of_shape
from penstock.cli.main import main
from penstock.models.configs import CONFIGS, get_config
from penstock.units import GIB, MIB


def estimate(capsys, *arguments: str) -> dict:
    assert main(["estimate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def work(name: str = "gpt3_6.7b", dtype: str = "float16", tflops: float | None = None) -> Work:
    return of_shape(get_config(name), 1, 1024, dtype, LINK_GB_PER_S, tflops)


def test_the_shape_that_was_measured(capsys):
    """13.72 GB of weights, 0.42 GB of them tables of which a step reads a few rows."""
    found = estimate(capsys, "gpt3_6.7b", "--dtype", "float16", "--gpu-memory", "8GiB")
    assert found["verb"] == "estimate"
    assert found["weight_bytes"] == pytest.approx(13.72e9, rel=1e-3)
    kept = 8 * GIB - found["activation_bytes"] - found["workspace_bytes"]
    assert found["touched_bytes"] == pytest.approx(13.72e9 - 0.42e9, rel=1e-3)
    assert found["bytes_in"] == pytest.approx(found["touched_bytes"] - kept, abs=2 * MIB)
    assert found["step_ms"] == pytest.approx(found["bytes_in"] / 55e9 * 1e3)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_smallest_budget_is_accepted_and_one_byte_less_is_not(name, dtype, capsys):
    smallest = estimate(capsys, name, "--dtype", dtype)["smallest_gpu_memory_bytes"]
    fits = estimate(capsys, name, "--dtype", dtype, "--gpu-memory", str(smallest))
    assert fits["gpu_memory_bytes"] == smallest
    assert main(["estimate", name, "--dtype", dtype, "--gpu-memory", str(smallest - 1)]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    remedy = re.search(r"try: (--gpu-memory \d+MiB)", captured.err)[1]
    assert main(["estimate", name, "--dtype", dtype, *remedy.split()]) == 0


def test_a_tied_table_is_read_whole():
    tied = of_shape(get_config("gpt2_xl", tied=True), 1, 1024, "float32", LINK_GB_PER_S, None)
    untied = of_shape(get_config("gpt2_xl"), 1, 1024, "float32", LINK_GB_PER_S, None)
    assert tied.touched_bytes == untied.touched_bytes
    assert tied.weight_bytes < untied.weight_bytes


@given(st.integers(1, 64 * GIB), st.integers(1, 64 * GIB), st.floats(1, 2000))
def test_a_larger_budget_is_never_slower(one, other, tflops):
    small, large = sorted((one, other))
    shape = work(tflops=tflops)
    slow, fast = shape.at(small), shape.at(large)
    assert fast.bytes_in <= slow.bytes_in
    assert fast.step_ms <= slow.step_ms
    assert slow.step_ms == max(slow.link_ms, shape.compute_ms)
    assert slow.step_ms >= shape.compute_ms


def test_with_everything_resident_nothing_moves():
    shape = work()
    assert shape.at(shape.resident_budget_bytes).bytes_in == 0
    assert shape.at(shape.resident_budget_bytes - 4 * MIB).bytes_in > 0


def test_compute_counts_only_when_given(capsys):
    without = estimate(capsys, "gpt3_6.7b", "--gpu-memory", "40GiB")
    assert (without["compute_ms"], without["step_ms"]) == (None, 0)
    found = estimate(capsys, "gpt3_6.7b", "--gpu-memory", "40GiB", "--compute-tflops", "500")
    assert found["step_ms"] == found["compute_ms"] == pytest.approx(27.8, rel=0.02)


def test_batch_and_link_scale_as_they_should(capsys):
    one = estimate(capsys, "gpt2_xl", "--gpu-memory", "4GiB", "--link", "10")
    two = estimate(capsys, "gpt2_xl", "--gpu-memory", "4GiB", "--link", "20")
    assert one["step_ms"] == pytest.approx(2 * two["step_ms"])
    large = estimate(capsys, "gpt2_xl", "--gpu-memory", "4GiB", "--batch", "2")
    assert large["activation_bytes"] == 2 * one["activation_bytes"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["gpt2_xl", "--batch", "0"],
        ["gpt2_xl", "--seq-len", "0"],
        ["gpt2_xl", "--seq-len", "1025"],
        ["gpt2_xl", "--dtype", "fp8"],
        ["gpt2_xl", "--link", "0"],
        ["gpt2_xl", "--link", "nan"],
        ["gpt2_xl", "--link", "1e-320"],
        ["gpt2_xl", "--batch", "9" * 400],
        ["gpt2_xl", "--compute-tflops", "1e-310"],
        ["gpt2_xl", "--compute-tflops", "-1"],
        ["gpt2_xl", "--gpu-memory", "80%"],
        ["gpt2_xl", "--gpu-memory", "lots"],
        ["gpt5"],
        [],
    ],
)
def test_what_makes_no_sense_is_exit_2(arguments, capsys):
    assert main(["estimate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")


def test_a_model_after_json_is_the_model(capsys):
    assert main(["estimate", "--json", "gpt2_xl"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "gpt2_xl"


def test_the_text_for_people_has_the_verdict_last(capsys):
    assert main(["estimate", "gpt2_xl", "--gpu-memory", "2GiB"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("gpt2_xl runs in 2.00 GiB")
    assert "estimated" in last
