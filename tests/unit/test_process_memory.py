# SPDX-License-Identifier: Apache-2.0
"""Whose memory counts: this process's where NVML knows it, else the whole device's."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from penstock.paging.process_memory import UNKNOWN, ProcessMemory  # noqa: E402
from penstock.units import MIB  # noqa: E402

DEVICE = torch.device("cuda", 0)
TOTAL = 1000


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
    state = SimpleNamespace(free=400, reserved=100)
    properties = SimpleNamespace(uuid="1-2-3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (state.free, TOTAL))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: state.reserved)
    return state


@pytest.mark.parametrize("uuid", ["GPU-1-2-3", "1-2-3"])
def test_another_process_does_not_count(card, uuid):
    nvml = Nvml(uuid, [(os.getpid() + 1, 300), (os.getpid(), 150)])
    memory = ProcessMemory(DEVICE, nvml)
    assert memory.by_process
    assert memory.taken() == 300  # of 600 in use: with the driver's own
    nvml.processes[0], card.free = (os.getpid() + 1, 700), 0
    assert memory.taken() == 300
    nvml.processes[:], card.free = [(os.getpid(), 250)], 600
    assert memory.taken() == 400
    nvml.error = 999  # what was known stands
    assert memory.taken() == 400


@pytest.mark.parametrize(
    ("uuid", "processes"),
    [
        ("GPU-another", [(os.getpid(), 150)]),
        ("GPU-1-2-3", [(os.getpid() + 1, 300)]),
        ("GPU-1-2-3", [(os.getpid(), UNKNOWN)]),
        ("GPU-1-2-3", [(os.getpid(), 99)]),  # less than is held: of another that has this number
        ("GPU-1-2-3", [(os.getpid(), 150), (os.getpid(), 160)]),
    ],
)
def test_the_device_stands_for_a_process_that_nvml_does_not_know(card, uuid, processes):
    memory = ProcessMemory(DEVICE, Nvml(uuid, processes))
    assert not memory.by_process
    assert memory.taken() == 600
    card.free = 100
    assert memory.taken() == 900


@pytest.mark.gpu
def test_a_program_beside_it_leaves_the_budget_alone():
    from torch import nn

    from penstock.paging import attach

    code = (
        "import torch; x = torch.ones(1 << 28, device='cuda'); print(len(x), flush=True); input()"
    )
    x = torch.randn(8, 1024, device="cuda")
    attached = attach(
        nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]), gpu_memory=96 * MIB
    )
    with torch.no_grad():
        attached.model(x)
        attached.model(x)
        before = attached.manager.uncounted()
        words = [sys.executable, "-c", code]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline()
            attached.model(x)
            beside = attached.manager.uncounted()
            other.communicate(b"\n")
    attached.detach()
    assert abs(before - beside) <= 8 * MIB
