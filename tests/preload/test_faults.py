# SPDX-License-Identifier: Apache-2.0
"""The proxy over a driver that fails at any call, and without host memory at any allocation."""

from __future__ import annotations

import re

import pytest
from test_proxy import SCENARIOS, check

COUNTS = re.compile(
    r"\w+: (\d+) calls once, (\d+) calls for good,(?: (\d+) allocations,)? 0 wrong\n"
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_call_and_each_allocation_fails(stack, scenario):
    counts = COUNTS.fullmatch(check(stack.run("program", "v2", scenario, "faults")))
    assert counts, scenario
    assert int(counts[1]) > 0


@pytest.mark.parametrize("scenario", sorted({*SCENARIOS} - {"threads"}))
def test_each_call_fails_under_sanitizers(stacks, scenario):
    assert COUNTS.fullmatch(check(stacks("asan").run("program", "v2", scenario, "faults")))
