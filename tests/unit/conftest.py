# SPDX-License-Identifier: Apache-2.0
"""Fixtures that tests of several subjects share."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.units import KIB

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _no_attachment_is_left():
    """After each test no tensor keeps the memory of an attachment that was released."""
    yield
    holding = sys.modules.get("penstock.paging.holding")
    if holding:
        # What a thread of PyTorch's keeps goes as that ends, some time after it has been joined.
        until = time.monotonic() + 10
        while holding.RETIRED and time.monotonic() < until:
            gc.collect()
            time.sleep(0.01)
        assert holding.RETIRED == []


@pytest.fixture
def left(monkeypatch):
    """What each device had left when it was closed."""
    from penstock.native import Device

    found, close = [], Device.close

    def watched(device):
        if device._handle is not None:
            found.append(device.live())
        close(device)

    monkeypatch.setattr(Device, "close", watched)
    return found


@pytest.fixture
def small_blocks(monkeypatch):
    """Models of tests are small, and so are the activations that leave for them."""
    from penstock.paging.training import saving

    monkeypatch.setattr(saving, "LEAST", 8 * KIB)


@pytest.fixture
def at_step_ends(monkeypatch):
    """A function that makes a list: of what it is told to read of activations after each step."""
    from penstock.paging.training.saving import Saving

    def collect(read):
        found, step_ends = [], Saving.step_ends

        def noted(saving):
            found.append(read(saving))
            step_ends(saving)

        monkeypatch.setattr(Saving, "step_ends", noted)
        return found

    return collect


@pytest.fixture
def loaded_by():
    """A function: the names of the modules that a program has loaded by its end."""

    def run(program):
        told = f"{program}\nimport sys\nprint(*sys.modules, file=sys.stderr)"
        done = subprocess.run(
            [sys.executable, "-c", told], capture_output=True, text=True, timeout=60, check=True
        )
        return set(done.stderr.splitlines()[-1].split())

    return run


@pytest.fixture
def no_attachments(no_grad):
    """Without gradients, as inference is; afterwards nothing is attached."""
    from penstock.paging import attachments

    yield
    gc.collect()
    assert attachments() == []


@pytest.fixture
def script(monkeypatch):
    """Imports a script of benchmarks/ by name; what it imported of them is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if BENCHMARKS in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]
