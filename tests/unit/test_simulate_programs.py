# SPDX-License-Identifier: Apache-2.0
"""What Penstock moves for programs whose data choose a part of what they use."""

from __future__ import annotations

import pytest

from penstock.native.simulate import simulate
from penstock.trace import read_work


@pytest.mark.slow
@pytest.mark.parametrize("program", ["experts_even", "experts_skewed", "experts_that_stay"])
@pytest.mark.parametrize("part", [1.5, 4.0])
def test_experts_move_hardly_more_than_on_demand(script, program, part, tmp_path):
    trace = read_work(script("programs.made_up").write_program(program, tmp_path))
    whole = simulate(trace, budget=trace.device_bytes, policy="lru", steps=1)
    budget = int(whole.figures["peak_bytes"] / part)
    moved, on_demand = (
        sum(step["bytes_in"] for step in simulate(trace, budget=budget, policy=policy).steps)
        for policy in ("penstock", "lru")
    )
    assert moved <= 1.25 * on_demand
