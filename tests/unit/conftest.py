# SPDX-License-Identifier: Apache-2.0
"""Fixtures that tests of several subjects share."""

from __future__ import annotations

import pytest

from penstock.units import KIB


@pytest.fixture
def small_blocks(monkeypatch):
    """Models of tests are small, and so are the activations that leave for them."""
    from penstock.paging.training import saving

    monkeypatch.setattr(saving, "LEAST", 8 * KIB)
