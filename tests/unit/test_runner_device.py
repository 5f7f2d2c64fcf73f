# SPDX-License-Identifier: Apache-2.0
"""The device of a run: which one is meant, and its memory by the driver's word.

A card's driver is played by a list of figures, so that the arithmetic is tested anywhere.
"""

from __future__ import annotations

import pytest
import torch

from penstock.config import Settings
from penstock.errors import EnvironmentProblem
from penstock.runner.device import MemoryWatch, RunDevice, choose_device, emulated_options


@pytest.fixture
def two_cards(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Card {device.index}")


@pytest.mark.parametrize(
    ("asked", "name", "label"),
    [("auto", "cuda:0", "Card 0"), ("cuda", "cuda:0", "Card 0"), ("cuda:1", "cuda:1", "Card 1")],
)
def test_where_there_are_gpus(asked, name, label, two_cards):
    device = choose_device(Settings(device=asked))
    assert (device.name, device.label, device.is_cuda) == (name, label, True)


def test_a_gpu_that_is_not_there(two_cards):
    with pytest.raises(EnvironmentProblem, match="--device cuda:2, but torch sees 2 GPUs"):
        choose_device(Settings(device="cuda:2"))


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(Settings(device="auto")).name == "emulated"
    with pytest.raises(EnvironmentProblem, match="torch sees no GPU"):
        choose_device(Settings(device="cuda"))


def test_the_emulated_gpu_is_there_beside_gpus(two_cards):
    device = choose_device(Settings(device="emulated"))
    assert (device.name, device.torch_device) == ("emulated", torch.device("cpu"))


def test_options_of_the_emulated_gpu():
    settings = Settings(
        emulated_capacity="1GiB", emulated_granularity="64KiB", emulated_delay_us=5, emulated_seed=9
    )
    assert emulated_options(settings) == {
        "capacity": 1 << 30,
        "granularity": 64 << 10,
        "max_delay_us": 5,
        "seed": 9,
    }
    assert set(emulated_options(Settings())) == {"max_delay_us", "seed"}


def card(monkeypatch, free, reserved=0):
    """A card whose driver reports these free bytes, one after the other, the last for ever."""
    figures = list(free)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(
        torch.cuda,
        "mem_get_info",
        lambda device: (figures.pop(0) if len(figures) > 1 else figures[0], 1000),
    )
    return RunDevice("cuda:0", torch.device("cuda", 0), "Card", {})


def test_the_peak_is_the_least_that_was_free(monkeypatch):
    watch = MemoryWatch(card(monkeypatch, [900, 500, 300, 700]))
    assert watch.peak == 0
    for _ in range(3):
        watch.look()
    assert watch.peak == 600


def test_what_pytorch_holds_already_counts(monkeypatch):
    watch = MemoryWatch(card(monkeypatch, [900, 800], reserved=32))
    watch.look()
    assert watch.peak == 132


def test_more_free_memory_than_at_the_start_is_no_negative_peak(monkeypatch):
    watch = MemoryWatch(card(monkeypatch, [500, 900]))
    watch.look()
    assert watch.peak == 0


def test_watching_asks_until_it_ends_even_by_an_error(monkeypatch):
    device = card(monkeypatch, [900, 100, 800])
    watch = MemoryWatch(device)
    with pytest.raises(RuntimeError, match="stop"), watch.watching():
        raise RuntimeError("stop")
    assert watch.peak == 800


def test_the_emulated_gpu_has_no_driver_to_ask():
    watch = MemoryWatch(RunDevice("emulated", torch.device("cpu"), "the emulated GPU", {}))
    with watch.watching():
        watch.look()
    assert watch.peak is None


def test_a_call_on_the_emulated_gpu_is_timed_by_the_clock():
    device = RunDevice("emulated", torch.device("cpu"), "the emulated GPU", {})
    result, ms = device.timed(lambda: 7)
    assert result == 7
    assert 0 <= ms < 1000
