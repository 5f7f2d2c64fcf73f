# SPDX-License-Identifier: Apache-2.0
"""Fixtures that unit and integration tests share."""

from __future__ import annotations

import pytest


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """A test that writes where it is writes into a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small_emulated_gpu(own_folder, monkeypatch):
    """Models of tests are small, and so is the emulated GPU that does not hold them."""
    monkeypatch.setenv("PENSTOCK_EMULATED_GRANULARITY", "16KiB")
    monkeypatch.setenv("PENSTOCK_EMULATED_CAPACITY", "32MiB")


@pytest.fixture
def no_grad():
    """As with inference."""
    import torch

    with torch.no_grad():
        yield
