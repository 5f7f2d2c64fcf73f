# SPDX-License-Identifier: Apache-2.0
"""How much of the budget activations get: a pure policy, and steps that it is told of."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.paging.training.room import FIRST_MARGIN, Bounds, Room, Seen
from penstock.units import MIB

BOUNDS = Bounds(total=1000 * MIB, least=100 * MIB, slack=10 * MIB)


def step(room, *, live=0, saved, work, key="a", size=1, bounds=BOUNDS):
    """A step that saves so much and needs `work` beside it, by the level that it is given."""
    decided = room.begins(key, size, bounds, live)
    if decided is None:
        there, left = saved, 0
    else:
        there = min(saved, max(0, decided.level - live))
        left = saved - there
    peak = live + there + work
    watched = decided is not None
    seen = Seen(live, peak, watched, left, saved if watched else 0, there if watched else 0, 1)
    room.ends(key, size, bounds, seen)
    return peak, left


def test_nothing_is_hooked_once_a_step_has_fitted():
    room = Room(weights=50 * MIB)
    levels = room.begins("a", 1, BOUNDS, 0)
    assert levels.level == levels.later == 900 * MIB * (1 - FIRST_MARGIN)
    assert levels.early == 0
    assert step(room, saved=200 * MIB, work=300 * MIB) == (500 * MIB, 0)
    assert room.begins("a", 1, BOUNDS, 0) is None
    assert room.begins("a", 1, BOUNDS, 500 * MIB) is not None  # other tensors are there
    assert room.begins("b", 2, BOUNDS, 0) is not None  # unknown


@pytest.mark.parametrize("work", [20 * MIB, 300 * MIB, 600 * MIB])
def test_the_peak_comes_to_the_room_by_halves(work):
    room = Room(weights=0)
    spare = [900 * MIB - step(room, saved=3000 * MIB, work=work)[0] for _ in range(8)]
    assert all(after <= max(before / 2, BOUNDS.slack) for before, after in pairwise(spare))
    assert abs(spare[-1]) <= BOUNDS.slack
    assert room.begins("a", 1, BOUNDS, 0).early == pytest.approx(2100 * MIB + work, abs=20 * MIB)


def test_operators_that_need_more_at_a_higher_level_do_not_go_beyond_the_room():
    """Where the level is reached by other layers, other operators are at work."""
    room = Room(weights=0)
    for _ in range(8):
        level = room.begins("a", 1, BOUNDS, 0).level
        work = (20 if level < 600 * MIB else 120) * MIB
        peak, _ = step(room, saved=3000 * MIB, work=work)
        assert peak <= 900 * MIB
    assert peak >= 880 * MIB


def test_a_peak_elsewhere_does_not_drive_everything_out():
    """The level is no help against what an update needs."""
    room = Room(weights=0)
    left = []
    for _ in range(12):
        decided = room.begins("a", 1, BOUNDS, 0)
        there = min(500 * MIB, decided.level)
        seen = Seen(0, 950 * MIB, True, 500 * MIB - there, 500 * MIB, there, 1)
        room.ends("a", 1, BOUNDS, seen)
        left.append(500 * MIB - there)
    assert max(left) <= 200 * MIB
    assert left[-1] == left[-2]


def test_of_weights_and_activations_as_much_leaves():
    room = Room(weights=800 * MIB)
    for _ in range(6):
        peak, left = step(room, saved=1000 * MIB, work=50 * MIB)
    # 950 for both, 1800 wanted: 425 of each leave.
    assert peak == pytest.approx((1000 - 375) * MIB, abs=2 * BOUNDS.slack)
    assert left == pytest.approx(425 * MIB, abs=3 * BOUNDS.slack)


def test_weights_get_the_least_where_activations_are_many():
    room = Room(weights=200 * MIB)
    for _ in range(8):
        peak, _ = step(room, saved=5000 * MIB, work=50 * MIB)
    assert peak == pytest.approx(BOUNDS.total - BOUNDS.least, abs=2 * BOUNDS.slack)


def test_a_step_out_of_memory_leaves_more_free():
    room = Room(weights=0)
    before = room.begins("a", 1, BOUNDS, 0)
    room.failed("a", 1, BOUNDS)
    after = room.begins("a", 1, BOUNDS, 0)
    assert after.level < before.level
    assert after.later < before.later


def test_a_larger_input_begins_with_a_larger_margin():
    room = Room(weights=0)
    for _ in range(3):
        step(room, saved=2000 * MIB, work=100 * MIB, size=10)
    levels = room.begins("a", 10, BOUNDS, 0)
    larger = room.begins("b", 40, BOUNDS, 0)
    assert 900 * MIB - larger.level == pytest.approx(4 * (900 * MIB - levels.level), rel=0.01)


def test_several_forwards_before_a_backward_must_fit_together():
    room = Room(weights=0)
    room.begins("a", 1, BOUNDS, 0)
    seen = Seen(200 * MIB, 500 * MIB, True, 0, 300 * MIB, 300 * MIB, together=4)
    room.ends("a", 1, BOUNDS, seen)
    assert room.begins("a", 1, BOUNDS, 0) is not None


def backward(room, *, saved, logits, work, steps=10):
    """Steps whose peak is at the end of forward, and which compute regions again after it."""
    left = []
    for _ in range(steps):
        levels = room.begins("a", 1, BOUNDS, 0)
        there = min(saved, max(0, levels.later - work))
        peak = there + work if levels.learning else None
        seen = Seen(0, logits, True, saved - there, saved, there, 1, saved - there, logits, peak)
        room.ends("a", 1, BOUNDS, seen)
        left.append(saved - there)
    return left, levels


def test_what_the_end_of_forward_needs_drives_nothing_out_in_backward():
    left, levels = backward(Room(weights=0), saved=700 * MIB, logits=905 * MIB, work=50 * MIB)
    assert left[0] > 0
    assert left[-5:] == [0] * 5
    assert levels.level == 450 * MIB


def test_the_peak_of_backward_is_asked_for_no_longer_than_it_teaches_something():
    room = Room(weights=0)
    left, levels = backward(room, saved=2000 * MIB, logits=600 * MIB, work=50 * MIB)
    assert 2000 * MIB - left[-1] == pytest.approx(850 * MIB, abs=2 * BOUNDS.slack)
    assert not levels.learning
    room.ends("a", 1, BOUNDS, Seen(0, 950 * MIB, True, 9, 9, 9, 1, 9, 600 * MIB, None))
    assert room.begins("a", 1, BOUNDS, 0).learning  # it was beyond the room
