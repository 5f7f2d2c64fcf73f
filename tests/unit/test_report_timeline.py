# SPDX-License-Identifier: Apache-2.0
"""``penstock report --trace``: what the Trace Event Format asks of each event, and what is told."""

from __future__ import annotations

import json

import pytest
from report_samples import comparison, finetuned

from penstock.cli.main import main

# Of each phase that is used: the keys that readers need.
NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.json").write_text(json.dumps(finetuned(ideal_ms=4.5)))
    (tmp_path / "two.json").write_text(json.dumps(comparison(failed=True)))


def events(tmp_path, *files):
    assert main(["report", *files, "--trace", "t.json"]) == 0
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["displayTimeUnit"] == "ms"
    return document["traceEvents"]


def test_every_event_has_what_the_format_asks_for(tmp_path):
    found = events(tmp_path, "one.json", "two.json")
    for event in found:
        assert NEEDED[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        assert all(isinstance(event[key], int) for key in ("pid", "tid") if key in event)
    assert {event["ph"] for event in found} == set(NEEDED)
    named = [event["pid"] for event in found if event["name"] == "process_name"]
    assert len(named) == len(set(named)) == 3  # the one that failed has no lane


def test_steps_follow_each_other_and_the_ideal_lies_beside(tmp_path):
    found = events(tmp_path, "one.json")
    steps = [(e["name"], e["ts"], e["dur"]) for e in found if e["ph"] == "X" and e["tid"] == 1]
    assert steps == [("step 2", 0.0, 5000.0), ("step 3", 5000.0, 4000.0)]
    ideal = [(e["ts"], e["dur"]) for e in found if e["ph"] == "X" and e["tid"] == 2]
    assert ideal == [(0.0, 4500.0), (5000.0, 4000.0)]  # never longer than its step
    memory = [e["args"]["requested"] for e in found if e["ph"] == "C"]
    assert memory == [1.0, float(90 << 20)]


def test_nothing_but_a_timeline_is_written_over(tmp_path, capsys):
    before = (tmp_path / "two.json").read_text()
    assert main(["report", "one.json", "--trace", "two.json"]) == 1
    assert (tmp_path / "two.json").read_text() == before
    events(tmp_path, "one.json")
    events(tmp_path, "one.json")  # over its own
    assert main(["report", "one.json", "--trace", "x", "--html", "x"]) == 2
    assert "--html and --trace are both x" in capsys.readouterr().err
