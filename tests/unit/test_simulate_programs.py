# SPDX-License-Identifier: Apache-2.0
"""What Penstock moves for programs whose data choose a part of what they use."""

import sys
from pathlib import Path

import pytest

from penstock.native.simulate import simulate
from penstock.trace import read_work

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from simulate_programs import PROGRAMS, write_program


@pytest.mark.slow
@pytest.mark.parametrize("program", ["experts_even", "experts_skewed", "experts_that_stay"])
@pytest.mark.parametrize("part", [1.5, 4.0])
def test_experts_move_hardly_more_than_on_demand(program, part, tmp_path):
    assert program in PROGRAMS
    trace = read_work(write_program(program, tmp_path))
    whole = simulate(trace, budget=trace.device_bytes, policy="lru", steps=1)
    budget = int(whole.figures["peak_bytes"] / part)
    moved, on_demand = (
        sum(step["bytes_in"] for step in simulate(trace, budget=budget, policy=policy).steps)
        for policy in ("penstock", "lru")
    )
    assert moved <= 1.25 * on_demand
