# SPDX-License-Identifier: Apache-2.0
"""The bound in words: a ratio below 1 is told as a wrong ideal."""

from __future__ import annotations

import pytest

from penstock.bound import told
from penstock.report.columns import _FIGURES


@pytest.mark.parametrize("ratio", [1.2, 1.0, 0.996])
def test_a_step_that_takes_at_least_the_ideal(ratio):
    assert told(ratio, "250") == f"{ratio:.3f} x the ideal of 250 ms"


def test_a_step_that_is_faster_than_is_possible():
    assert told(0.98, "250").startswith("0.980 x the ideal of 250 ms, which is wrong")
    (column,) = (figure for figure in _FIGURES if figure.title == "x ideal")
    assert column.text(0.98) == "0.98 (ideal wrong)"
    assert column.text(1.0) == "1.00"
