# SPDX-License-Identifier: Apache-2.0
"""attach() obeys the configuration, and its own arguments before it."""

from __future__ import annotations

import pytest
import torch

import penstock
from penstock.errors import UsageError
from penstock.units import MIB


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_DEVICE", "emulated")
    return torch.nn.Linear(64, 64)


def budget(model, **arguments) -> int:
    attached = penstock.attach(model, **arguments)
    try:
        return attached.budget
    finally:
        attached.detach()


def test_the_variable_the_file_and_the_argument(model, monkeypatch, tmp_path):
    (tmp_path / "penstock.toml").write_text('gpu_memory = "64MiB"\n[emulated]\ncapacity = "1GiB"\n')
    assert budget(model) == 64 * MIB
    monkeypatch.setenv("PENSTOCK_GPU_MEMORY", "50%")
    assert budget(model) == 512 * MIB
    assert budget(model, gpu_memory="32MiB") == 32 * MIB
    assert budget(model, gpu_memory=16 * MIB) == 16 * MIB


def test_auto_as_an_argument_is_a_word_of_its_own(model, monkeypatch):
    monkeypatch.setenv("PENSTOCK_GPU_MEMORY", "32MiB")
    monkeypatch.setenv("PENSTOCK_EMULATED_CAPACITY", "1GiB")
    assert budget(model, gpu_memory="auto") == pytest.approx(0.9 * 1024 * MIB, abs=2 * MIB)


def test_the_name_of_an_ancestor(model, monkeypatch):
    monkeypatch.setenv("ULMS_GPU_MEMORY_FACTOR", "25")
    monkeypatch.setenv("PENSTOCK_EMULATED_CAPACITY", "1GiB")
    assert budget(model) == 256 * MIB


@pytest.mark.parametrize(
    ("variable", "argument", "encoded"),
    [("bf16", None, True), ("bf16", "off", False), ("off", "auto", True), ("auto", None, True)],
)
def test_compress_comes_from_both(monkeypatch, tmp_path, variable, argument, encoded):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_COMPRESS", variable)
    layers = [torch.nn.Linear(256, 256) for _ in range(8)]
    attached = penstock.attach(
        torch.nn.Sequential(*layers).to(torch.bfloat16),
        gpu_memory="600KiB",
        device="emulated",
        chunk_size="64KiB",
        compress=argument,
        emulated={"capacity": 8 * MIB, "granularity": 64 * 1024},
    )
    assert (attached.stats().encoded_bytes > 0) == encoded
    attached.detach()


def test_a_variable_that_is_not_valid_is_named(model, monkeypatch):
    monkeypatch.setenv("PENSTOCK_SAFETY", "lax")
    with pytest.raises(UsageError, match="PENSTOCK_SAFETY"):
        penstock.attach(model)
    assert penstock.attachments() == []
