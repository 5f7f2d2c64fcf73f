# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of unannounced reads counts, and what it complains of."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def modules(script, monkeypatch):
    pytest.importorskip("triton")
    table = script("hidden_reads")
    monkeypatch.syspath_prepend(str(Path(table.__file__).parent / "programs"))
    del sys.modules["hidden_reads"]
    return table, script("hidden_reads")


def test_tries_are_told_apart(modules):
    _, program = modules
    not_read = program.NOT_READ
    assert program.outcomes([5, 6], [5, 7], faulted=False) == {"right": 1, "wrong": 1, "fault": 0}
    found = program.outcomes([5, not_read, 9, not_read], [5, 6, 9, 7], faulted=True)
    assert found == {"right": 2, "wrong": 0, "fault": 1}
    with pytest.raises(ValueError, match="no fault, and 1 of 2"):
        program.outcomes([5, not_read], [5, 6], faulted=False)
    # Then it was the sweep that faulted, whose work is announced.
    with pytest.raises(ValueError, match="a fault, and 2 of 2"):
        program.outcomes([5, 6], [5, 6], faulted=True)


def test_groups_end_with_a_fault_and_are_counted_until_there_are_enough(modules):
    _, program = modules
    asked = []

    def group(seed, tries):
        asked.append((seed, tries))
        return program.in_child(lambda: {"right": min(tries, 3), "wrong": 0, "fault": tries > 3})

    total = program.count_all(10, group)
    assert asked == [(0, 10), (1, 6), (2, 2)]
    assert total == {"right": 8, "wrong": 0, "fault": 2, "groups": 3}
    with pytest.raises(ValueError, match="made none"):
        program.count_all(1, lambda *_: {"right": 0, "wrong": 0, "fault": 0})


def test_a_child_that_fails_or_dies_is_told(modules):
    _, program = modules
    with pytest.raises(ValueError, match="RuntimeError: no room"):
        program.in_child(lambda: (_ for _ in ()).throw(RuntimeError("no room")))
    with pytest.raises(ValueError, match="status 9"):
        program.in_child(lambda: os.kill(os.getpid(), 9))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"safety": "normal", "wrong": 0, "fault": 9, "tries": 10}, None),
        ({"safety": "normal", "wrong": 1, "fault": 9, "tries": 10}, "of other data"),
        ({"safety": "strict", "wrong": 0, "fault": 0, "tries": 10}, None),
        ({"safety": "strict", "wrong": 0, "fault": 1, "tries": 10}, "faulted"),
        ({"safety": "fast", "wrong": 4, "fault": 0, "tries": 10}, None),
        ({"safety": "fast", "wrong": 0, "fault": 0, "tries": 10}, "cannot tell"),
        ({"safety": "fast", "error": "exit 1"}, "exit 1"),
    ],
)
def test_what_must_not_be_is_complained_of(modules, row, expected):
    table, _ = modules
    found = table.complaint(row)
    assert found is None if expected is None else expected in found
