# SPDX-License-Identifier: Apache-2.0
"""The mutation test's rules are where it looks for them, and it tells outcomes apart."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
mutation = importlib.import_module("mutation_test")

RULE = mutation.Rule(name="two", file="a.cpp", old="b();", new="")


def test_every_rule_is_in_the_code_once_and_has_one_name():
    rules = mutation.read_rules()
    assert [problem for rule in rules if (problem := mutation.misplaced(rule))] == []
    assert len({rule.name for rule in rules}) == len(rules)


@pytest.mark.parametrize(
    ("change", "source", "expected"),
    [
        ({}, "a(); b();", None),
        ({}, "a();", "0 times"),
        ({}, "b(); b();", "2 times"),
        ({"file": "c.cpp"}, "b();", "there is no"),
        ({"new": "b();"}, "b();", "nothing changes"),
        ({"tests": "pager*"}, "b();", "no reason"),
        ({"tests": "pager*", "why": "a failure has to be injected"}, "b();", None),
    ],
)
def test_a_rule_that_cannot_be_taken_out_is_told(tmp_path, change, source, expected):
    (tmp_path / "a.cpp").write_text(source)
    problem = mutation.misplaced(dataclasses.replace(RULE, **change), tmp_path)
    assert problem is None if expected is None else expected in problem


@pytest.mark.parametrize(
    ("script", "how", "seed"),
    [
        ("exit 0", None, None),
        ("echo 'again with PENSTOCK_PROPERTY_SEED=7 x'; exit 1", "failed", 7),
        ("kill -SEGV $$", "signal 11", None),
        ("sleep 60", "hung for 1 s", None),
    ],
)
def test_what_became_of_the_tests_is_read_off_their_run(tmp_path, monkeypatch, script, how, seed):
    program = tmp_path / "build/dev/property_tests"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(mutation, "LEAST_SECONDS", 1)
    outcome = mutation.run_tests(tmp_path, RULE.name, "property:*", 10)
    assert (outcome.how, outcome.seed) == (how, seed)
    assert ("SURVIVED" in mutation.show(outcome)) == (how is None)


def test_what_is_the_same_is_not_written_again(tmp_path):
    path = tmp_path / "a" / "b"
    mutation.write_if_changed(path, b"1")
    before = path.stat().st_mtime_ns
    mutation.write_if_changed(path, b"1")
    assert path.stat().st_mtime_ns == before
    mutation.write_if_changed(path, b"2")
    assert path.read_bytes() == b"2"
