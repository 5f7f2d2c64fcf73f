# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a result: the bound max(T, (M - S) / B), rates and spreads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.figures import Steps, ideal_step, spread

GB = 10**9


def ideal(**changes):
    values = {"touched": 14 * GB, "budget": 8 * GB, "others": 1 * GB, "link_gb_per_s": 50.0}
    return ideal_step(**{**values, **changes})


def test_the_link_is_the_bound_of_a_large_model():
    found = ideal(resident_ms=26.4)
    assert found.room_bytes == 7 * GB
    assert found.ms == pytest.approx(7 * GB / 50.0 / 1e6)
    assert (found.compute_ms, found.compute_from) == (26.4, "resident run")


def test_compute_is_the_bound_where_copies_hide_behind_it():
    found = ideal(touched=7.1 * GB, profiled_ms=26.4)
    assert found.ms == 26.4
    assert found.compute_from == "profiled pass"


def test_a_resident_run_is_better_evidence_than_a_profiled_pass():
    assert ideal(resident_ms=20.0, profiled_ms=30.0).compute_ms == 20.0
    assert ideal(touched=GB, profiled_ms=0.0, own_ms=5.0).ms == 5.0


def test_a_profiled_pass_that_was_a_slow_one_is_no_bound_of_faster_steps():
    found = ideal(touched=7.1 * GB, profiled_ms=472.0, step_ms=206.0)
    assert (found.ms, found.compute_from) == (206.0, "profiled pass")
    assert ideal(touched=7.1 * GB, profiled_ms=26.4, step_ms=206.0).ms == 26.4
    # A resident run was seen to take what it took, whatever these steps did.
    assert ideal(touched=7.1 * GB, resident_ms=30.0, step_ms=26.0).ms == 30.0


def test_no_bound_is_known_where_nothing_was_measured():
    assert ideal(link_gb_per_s=0.0).ms is None
    assert ideal(touched=1).ms is None


@given(
    touched=st.integers(0, 10**12),
    budget=st.integers(0, 10**12),
    others=st.integers(0, 10**12),
    resident=st.floats(0.001, 1e6),
)
def test_the_bound_is_never_below_either_of_its_parts(touched, budget, others, resident):
    found = ideal(touched=touched, budget=budget, others=others, resident_ms=resident)
    assert found.ms >= resident
    assert found.ms >= (touched - max(0, budget - others)) / 50.0 / 1e6
    assert found.room_bytes >= 0


def test_the_rate_is_all_tokens_over_all_time():
    steps = Steps(ms=[100.0, 300.0], bytes_in=[0, 0], bytes_out=[0, 0], tokens=[40, 40])
    assert steps.tokens_per_second == pytest.approx(200.0)
    assert steps.median_ms == 200.0


def test_spread():
    assert spread([5.0]) == (5.0, 5.0, 5.0)
    assert spread([float(n) for n in range(20, 0, -1)]) == (3.0, 10.5, 18.0)
