# SPDX-License-Identifier: Apache-2.0
"""Every test starts from the same seed, and is told which kernels ran."""

from __future__ import annotations

import pytest
import torch

from penstock.fusion import launch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def recorded(monkeypatch, what):
    """Something of every kernel that ran."""
    found = []
    original = launch.Start.interpret

    def kept(start, tensors):
        found.append(what(start))
        original(start, tensors)

    monkeypatch.setattr(launch.Start, "interpret", kept)
    return found


@pytest.fixture
def launched(monkeypatch):
    """Names of the kernels that ran: a test of a kernel that did not run it says nothing."""
    return recorded(monkeypatch, lambda start: start.kernel.fn.__name__)


@pytest.fixture
def started(monkeypatch):
    """Names of the kernels that ran, and what each was compiled for."""
    return recorded(monkeypatch, lambda start: (start.kernel.fn.__name__, start.constants))
