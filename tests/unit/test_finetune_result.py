# SPDX-License-Identifier: Apache-2.0
"""When a run's profile says how fast its steps could be, and when it does not."""

from __future__ import annotations

import pytest

from penstock.finetune.result import ideal_ms


@pytest.mark.parametrize("ideal", [480.0, 596.0])  # the latter of a step that was slower than most
def test_a_profile_is_the_ideal(ideal):
    assert ideal_ms({"ideal_ms": ideal, "profiled_iterations": 2}, 534.0) == ideal


@pytest.mark.parametrize(
    ("counters", "median"),
    [
        ({}, 500.0),  # resident: nothing is profiled
        ({"ideal_ms": 480.0, "profiled_iterations": 1}, 500.0),  # the step that made everything
        ({"ideal_ms": 480.0, "profiled_iterations": 2}, None),  # no step was timed
    ],
)
def test_other_profiles_say_nothing(counters, median):
    assert ideal_ms(counters, median) is None
