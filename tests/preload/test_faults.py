# SPDX-License-Identifier: Apache-2.0
"""The proxy over a driver that fails at any call, and without host memory at any allocation."""

from __future__ import annotations

import re

import pytest
from fault_tally import EVERY, tell_faults
from test_proxy import SCENARIOS, check

COUNTS = re.compile(
    r"\w+: (\d+) calls once, (\d+) calls for good,(?: (\d+) allocations,)? 0 wrong\n"
)
WHAT = ("calls, once", "calls, for good", "allocations")


def run(stack, scenario):
    # Thousands, each in a process of its own.
    more = {"seconds": 3600, "PENSTOCK_EVERY_CALL": "1"} if EVERY else {}
    return stack.run("program", "v2", scenario, "faults", **more)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_call_and_each_allocation_fails(stack, scenario):
    counts = COUNTS.fullmatch(check(run(stack, scenario)))
    assert counts, scenario
    assert int(counts[1]) > 0
    for what, count in zip(WHAT, counts.groups(), strict=True):
        tell_faults("the proxy, in C", what, int(count))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", sorted({*SCENARIOS} - {"threads"}))
def test_each_call_fails_under_sanitizers(stacks, scenario):
    assert COUNTS.fullmatch(check(run(stacks("asan"), scenario)))
