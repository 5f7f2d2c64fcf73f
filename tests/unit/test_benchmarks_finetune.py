# SPDX-License-Identifier: Apache-2.0
"""The benchmark of fine-tunes: its rows, its limit, and one row end to end on the emulated GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def suite(script):
    return script("finetune_suite")


def test_every_row_is_a_request_that_makes_sense(suite):
    import click

    from penstock.cli.finetune import command

    parts = ["--parts", *suite.PARTS, *suite.SEVERAL]
    peers = suite.plans(suite.arguments(["--output", "x", "--parts", "peers"]))
    plans = suite.plans(suite.arguments(["--output", "x", *parts]))
    assert {f"xl {name} offload" for name in suite.PEERS} < {plan.label for plan in peers}
    labels = [plan.label for plan in plans]
    assert len(set(labels)) == len(labels)
    assert {plan.compared_with for plan in plans} <= {*labels, ""}
    for strategy in ("N", "R", "LR", "RO", "LRO"):
        assert {f"opt {strategy} {name}" for name in suite.ALLOCATORS} <= set(labels)
    assert {"xl resident", "xl 16GiB", "xl 12GiB", "xl 9GiB", "6.7b 40GiB"} <= set(labels)
    for plan in [*plans, *peers]:
        with click.Context(command):
            command.make_context("finetune", list(plan.flags))
        small = suite.tiny(plan.flags)
        assert "tiny" in small
        assert small[-2:] == ["--device", "emulated"]


def test_no_row_is_begun_that_would_end_too_late(suite, tmp_path, capsys):
    output = tmp_path / "a.json"
    assert suite.main(["--output", str(output), "--parts", "find", "--limit", "5"]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [("skipped" in row, "exit" in row) for row in rows] == [(True, False)] * 3
    assert capsys.readouterr().out.count("skipped") == 3


@pytest.mark.slow
def test_a_row_that_works_and_one_that_does_not(suite, tmp_path, monkeypatch, capsys):
    rows = [
        suite.Plan("good", ("--model", "tiny", "--batch", "8", "--seq-len", "512"), 60),
        suite.Plan("bad", ("--model", "tiny", "--strategy", "X"), 60, "good"),
    ]
    monkeypatch.setattr(suite, "plans", lambda args: rows)
    output = tmp_path / "a.json"
    assert suite.main(["--output", str(output), "--tiny"]) == 1
    good, bad = json.loads(output.read_text())["rows"]
    assert good["result"]["batch"] == 2
    assert good["command"].startswith("penstock finetune --model tiny --batch 2")
    assert (bad["exit"], bad["error"].startswith("error: ")) == (2, True)
    assert "utilisation" in capsys.readouterr().out
