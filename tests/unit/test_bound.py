# SPDX-License-Identifier: Apache-2.0
"""The bound: what crosses where models run in turn, and a ratio below 1 told as a wrong ideal."""

from __future__ import annotations

import random

import pytest

from penstock.bound import must_cross_in_turn, told
from penstock.report.columns import _FIGURES


@pytest.mark.parametrize("ratio", [1.2, 1.0, 0.996])
def test_a_step_that_takes_at_least_the_ideal(ratio):
    assert told(ratio, "250") == f"{ratio:.3f} x the ideal of 250 ms"


def test_a_step_that_is_faster_than_is_possible():
    assert told(0.98, "250").startswith("0.980 x the ideal of 250 ms, which is wrong")
    (column,) = (figure for figure in _FIGURES if figure.title == "x ideal")
    assert column.text(0.98) == "0.98 (ideal wrong)"
    assert column.text(1.0) == "1.00"


@pytest.mark.parametrize(
    ("passes", "crossing"),
    [
        ([("a", 10, 4)], [6]),  # as M - S
        ([("a", 10, 12)], [0]),
        ([("a", 10, 4), ("b", 8, 4)], [6, 8]),  # one sweep over both: 18 - 4
        ([("t", 9, 6)] + [("d", 24, 6)] * 3, [9, 18, 18, 18]),  # kept across "t", which streams
        ([("t", 9, 6), ("d", 24, 6), ("v", 1, 2)], [7, 24, 0]),  # across "v" as much as its room
        ([("a", 3, 12), ("b", 4, 12), ("c", 5, 12)], [0, 0, 0]),
        ([("a", 3, -1)], [3]),
    ],
)
def test_what_must_cross_where_models_run_in_turn(passes, crossing):
    assert must_cross_in_turn(passes) == crossing


def fewest(sequence, room):
    """Bytes that come in, of weights read whole in this order, whoever evicts; a byte each."""
    states = {frozenset(): 0}
    for name in sequence:
        after = {}
        for state, cost in states.items():
            cost += name not in state
            full = state | {name}
            kept = [full] if len(full) <= room else [full - {one} for one in full]
            for each in kept:
                after[each] = min(cost, after.get(each, cost))
        states = after
    return min(states.values())


@pytest.mark.parametrize("seed", range(30))
def test_no_policy_moves_less_than_must_cross_in_turn(seed):
    draw = random.Random(seed)
    names = "abcd"[: draw.randint(2, 4)]
    order = [draw.choice(names) for _ in range(draw.randint(2, 6))]
    room = draw.randint(1, 4)
    least = sum(must_cross_in_turn([(name, 1, room) for name in order]))
    cost = fewest(order * 12, room) - fewest(order * 4, room)
    assert least <= cost / 8 <= least + 1 / 8 * len(order)
