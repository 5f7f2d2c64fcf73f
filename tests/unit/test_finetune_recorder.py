# SPDX-License-Identifier: Apache-2.0
"""The recorder sees what a GPU's allocator would be asked for, and a replay of it says so."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from penstock.allocator.stats import as_torch
from penstock.finetune.memory import (
    Budget,
    CudaMeter,
    ReplayMeter,
    allocator_counters,
    driver_calls,
)
from penstock.finetune.recorder import AllocationRecorder
from penstock.finetune.search import largest
from penstock.native.api import new

MIB = 1 << 20


def events(recorder):
    trace = recorder.trace("test")
    return [
        (int(op), int(number), int(size))
        for op, number, size in zip(trace.op, trace.id, trace.size, strict=True)
    ]


def test_births_and_deaths_in_their_order():
    recorder = AllocationRecorder()
    with recorder:
        first = torch.zeros(256)
        second = first + 1  # a new storage
        view = second.view(16, 16).t()  # none
        second.add_(1)  # none
        del first
        del second  # the view keeps it
        third = torch.empty(8, dtype=torch.int64)
        del view
    del third
    assert events(recorder) == [
        *((0, 0, 1024), (0, 1, 1024), (1, 0, 1024), (2, 0, 1024)),
        *((0, 2, 64), (1, 1, 1024), (2, 1, 1024), (1, 2, 64), (2, 2, 64)),
    ]


def test_what_is_there_already_is_counted_once():
    weight = torch.nn.Parameter(torch.ones(100))
    recorder = AllocationRecorder()
    recorder.adopt([weight, weight.view(10, 10)])
    with recorder:
        weight.detach().mul_(2)
    recorder.adopt([weight])
    assert events(recorder) == [(0, 0, 400)]


def test_gradients_of_a_backward_pass_come_and_go():
    layer = torch.nn.Linear(64, 64, bias=False)
    recorder = AllocationRecorder()
    recorder.adopt(layer.parameters())
    with recorder:
        layer(torch.ones(4, 64)).sum().backward()
        alive = sum(size for op, _, size in events(recorder) if op == 0)
        alive -= sum(size for op, _, size in events(recorder) if op == 2)
        assert alive == layer.weight.nbytes + layer.weight.grad.nbytes == recorder.alive_bytes
        layer.weight.grad = None
    opened = {number for op, number, _ in events(recorder) if op == 0}
    closed = {number for op, number, _ in events(recorder) if op == 2}
    assert opened - closed == {0}  # the weight


def test_storage_that_is_resized_is_given_back_and_taken_again():
    recorder = AllocationRecorder()
    with recorder:
        tensor = torch.zeros(256)
        tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(1024)
    assert events(recorder) == [(0, 0, 1024), (1, 0, 1024), (2, 0, 1024), (0, 1, 1024)]
    before = torch.UntypedStorage.resize_
    with AllocationRecorder():
        assert torch.UntypedStorage.resize_ is not before
    assert torch.UntypedStorage.resize_ is before


def test_memory_that_is_not_torchs_is_left_out():
    foreign = torch.from_numpy(np.zeros(1000, np.float32))
    recorder = AllocationRecorder()
    with recorder:
        foreign.view(10, 100).t()
        foreign.clone()
    assert [size for op, _, size in events(recorder) if op == 0] == [4000]


@pytest.fixture
def meter():
    def make(allocator="stitch"):
        return ReplayMeter(AllocationRecorder(), allocator, {})

    return make


def test_a_replay_says_what_each_allocator_would_have_held(meter):
    figures = {}
    for allocator in ("native", "stitch"):
        watching = meter(allocator)
        with watching.step():
            small = [torch.empty(4 * MIB, dtype=torch.uint8) for _ in range(8)]
            del small[::2]
            large = torch.empty(16 * MIB, dtype=torch.uint8)
        del small, large
        figures[allocator] = watching.figures()
    assert figures["stitch"].requested == figures["native"].requested == 32 * MIB
    assert figures["stitch"].active == 32 * MIB
    assert figures["stitch"].reserved == 32 * MIB < figures["native"].reserved
    assert figures["stitch"].utilisation == 1.0
    assert figures["stitch"].source == "replayed"
    curve = figures["stitch"].curve
    assert len(curve.ms) == len(curve.reserved) == len(curve.requested) > 0
    assert max(curve.reserved) == 32 * MIB


def test_a_budget_holds_what_fits(meter):
    watching = meter()
    with watching.step():
        torch.empty(10 * MIB, dtype=torch.uint8)
    assert Budget(10 * MIB, 0, meter).holds(watching)
    assert not Budget(9 * MIB, 0, meter).holds(watching)
    assert not Budget(MIB, 0, meter).holds(watching)  # below what an allocator takes at all
    assert Budget(13 * MIB, 3 * MIB, meter).holds(watching)
    assert not Budget(12 * MIB, 3 * MIB, meter).holds(watching)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 9, 100, 1000])
def test_the_largest_is_found_in_few_tries(limit):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= limit

    assert largest(fits) == limit
    assert len(tried) <= 2 + 2 * max(1, limit).bit_length()
    assert len(set(tried)) == len(tried)
    tried.clear()
    assert largest(fits, below=limit + 5) == limit
    assert limit + 5 not in tried


def test_driver_calls_of_any_allocator():
    assert driver_calls({"num_device_alloc": 3, "num_device_free": 1}) == 4
    nested = as_torch(new("allocator_stats", driver_calls=7))
    assert driver_calls({f"penstock.{key}": each for key, each in nested["penstock"].items()}) == 7
    flat = {"penstock.stitches": 3, "penstock.chunks.current": 5, "num_ooms": 1}
    assert allocator_counters(flat) == {"stitches": 3}


class Card:
    """As much of a CUDA device as a meter asks."""

    is_cuda, torch_device = True, None

    def __init__(self, monkeypatch):
        for name in ("empty_cache", "memory_reserved", "reset_peak_memory_stats", "memory_stats"):
            answer = {} if name == "memory_stats" else 0
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
        self.free = 100 * MIB

    def free_bytes(self):
        return self.free


def test_what_is_taken_within_a_step_and_given_back_counts(monkeypatch):
    card = Card(monkeypatch)
    meter = CudaMeter(card, watched=1)
    for taken in (60 * MIB, 80 * MIB):  # only the first step is watched throughout
        with meter.step():
            card.free -= taken
            time.sleep(0.1)
            card.free += taken
    assert meter.figures().device == 60 * MIB
