# SPDX-License-Identifier: Apache-2.0
"""Whose memory counts: this process's where NVML knows it, else the whole device's."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from penstock.paging.process_memory import TABLES, UNKNOWN, ProcessMemory
from penstock.units import GIB, MIB

DEVICE = torch.device("cuda", 0)
TOTAL = 1000 * MIB


class Nvml:
    """A library that knows some processes of a device."""

    def __init__(self, uuid, processes):
        self.uuid, self.processes, self.error = uuid, processes, 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        return 0 if uuid.decode() == self.uuid else 6

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, found):
        count._obj.value = len(self.processes)
        for place, (pid, used) in zip(found, self.processes, strict=False):
            place.pid, place.used = pid, used
        return self.error


@pytest.fixture
def card(monkeypatch):
    state = SimpleNamespace(free=550 * MIB, reserved=100 * MIB)
    properties = SimpleNamespace(uuid="1-2-3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (state.free, TOTAL))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: state.reserved)
    return state


@pytest.mark.parametrize("uuid", ["GPU-1-2-3", "1-2-3"])
def test_another_process_does_not_count(card, uuid):
    nvml = Nvml(uuid, [(os.getpid() + 1, 300 * MIB), (os.getpid(), 140 * MIB)])
    memory = ProcessMemory(DEVICE, nvml)
    assert memory.taken() == 150 * MIB  # of 450 in use: with the driver's own tables
    nvml.processes[0], card.free = (os.getpid() + 1, 700 * MIB), 150 * MIB
    assert memory.taken() == 150 * MIB
    nvml.processes[:], card.free = [(os.getpid(), 250 * MIB)], 740 * MIB
    assert memory.taken() == 260 * MIB
    nvml.error = 999  # what was known stands
    assert memory.taken() == 260 * MIB


def test_a_process_that_begins_or_ends_does_not_count(card):
    """Its memory is in use before NVML has it, and for a while is told of when it is free again."""
    memory = ProcessMemory(DEVICE, Nvml("1-2-3", [(os.getpid(), 140 * MIB)]))
    card.free -= 400 * MIB
    assert memory.taken() == 140 * MIB + TABLES
    assert memory.taken(locked=GIB) == 140 * MIB + TABLES + 4 * MIB
    card.free = TOTAL - 100 * MIB
    assert memory.taken(locked=GIB) == 140 * MIB + TABLES + 4 * MIB  # as it was
    card.free = TOTAL - 149 * MIB
    assert memory.taken(locked=GIB) == 149 * MIB


@pytest.mark.parametrize(
    ("uuid", "processes"),
    [
        ("GPU-another", [(os.getpid(), 150 * MIB)]),
        ("GPU-1-2-3", [(os.getpid() + 1, 300 * MIB)]),
        ("GPU-1-2-3", [(os.getpid(), UNKNOWN)]),
        ("GPU-1-2-3", [(os.getpid(), 99 * MIB)]),  # less than is held: another's of this number
        ("GPU-1-2-3", [(os.getpid(), 150 * MIB), (os.getpid(), 160 * MIB)]),
    ],
)
def test_the_device_stands_for_a_process_that_nvml_does_not_know(card, uuid, processes):
    memory = ProcessMemory(DEVICE, Nvml(uuid, processes))
    assert memory.taken() == 450 * MIB
    card.free = 100 * MIB
    assert memory.taken() == 900 * MIB


@pytest.mark.gpu
def test_programs_beside_it_leave_the_budget_alone():
    """Those that begin and end too, whose memory NVML is late to tell."""
    from torch import nn

    from penstock.paging import attach

    code = "import torch; x = torch.ones(1 << 28, device='cuda'); print(len(x), flush=True)"
    x = torch.randn(8, 1024, device="cuda")
    torch.cuda.empty_cache()
    budget = 96 * MIB + torch.cuda.memory_reserved()  # what lives from before counts
    attached = attach(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]), gpu_memory=budget)
    with torch.no_grad():
        attached.model(x)
        attached.model(x)
        before, beside = attached.manager.uncounted(), []
        words = [sys.executable, "-c", code]
        others = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(3)]
        while any(other.poll() is None for other in others):
            attached.model(x)
            beside.append(attached.manager.uncounted())
    attached.detach()
    assert [other.returncode for other in others] == [0, 0, 0]
    assert max(abs(before - now) for now in beside) <= TABLES
