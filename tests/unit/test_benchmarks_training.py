# SPDX-License-Identifier: Apache-2.0
"""The training benchmark beside its peers: their needs, and a row end to end on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from penstock.host import check_host_memory
from penstock.units import GIB

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers(script):
    return script("training_peers")


def test_what_zero_takes_of_the_host_depends_on_the_dtype_of_its_state(peers):
    parameters = 6_738_415_616
    need = {
        (how, half): peer.host_bytes(parameters, half=half) / GIB
        for how, peer in peers.PEERS.items()
        for half in (True, False)
    }
    assert need["FSDP2", True] < need["ZeRO-2", True] < need["ZeRO-3", True] < 120
    assert 128 < need["ZeRO-2", False] < need["ZeRO-3", False]


def test_a_peer_that_the_host_cannot_hold_says_so_in_its_row(peers, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setattr(peers, "alone", lambda: None)
    monkeypatch.setattr(peers, "check_host_memory", partial(check_host_memory, limit=1 << 20))
    words = ["--model", "llama_7b_1x1024", "--how", "ZeRO-3", "--budget", "5MiB"]
    monkeypatch.setattr(sys, "argv", ["training_peers.py", *words, "--device", "emulated"])
    peers.main()
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "12.2 MiB" in row["error"]
    assert "1.00 MiB are available" in row["error"]


def test_layers_are_what_the_outermost_lists_hold(peers):
    blocks = [nn.ModuleList([nn.Linear(2, 2)]), nn.Linear(2, 2)]
    last = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(nn.ModuleList(blocks), nn.ReLU()), nn.ModuleList([last]))
    assert peers.layers_of(model) == [*blocks, last]


def test_the_table_has_what_failed_too(script, monkeypatch):
    tables = script("pages.training")
    good = {"how": "auto", "budget_bytes": 24 * GIB, "update": "device", "median_ms": 1234.5}
    good |= {"p99_ms": 1300.0, "used_bytes": 23 * GIB, "host_peak_bytes": 50 * GIB}
    bad = {"how": "ZeRO-3", "error": "OutOfMemory('105 GiB | none')\nand more"}
    rows = [{"model": "llama", **row} for row in (good, bad)]
    document = {"where": {"commit": "0123456789"}, "rows": rows}
    monkeypatch.setattr(tables, "BESIDE", ["a"])
    monkeypatch.setattr(tables, "result", lambda name: document)
    head, _, first, second = tables.trained_beside_peers().splitlines()
    assert "| llama | auto | 24.00 | device | 1,234 | 1,300 |  | 23.00 | 50.00 |  |" in first
    assert "| OutOfMemory('105 GiB / none') |" in second
    assert len({line.count("|") for line in (head, first, second)}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["FSDP2", "ZeRO-3"])
def test_a_peer_loses_what_plain_pytorch_does(how, tmp_path):
    pytest.importorskip("transformers")
    if how != "FSDP2":
        pytest.importorskip("deepspeed")
    output = tmp_path / "a.json"
    command = [sys.executable, str(BENCHMARKS / "training_budget.py"), "--device", "emulated"]
    command += ["--models", "llama_7b_1x1024", "--hows", f"resident,{how}", "--output", str(output)]
    command += ["--warmups", "1", "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    _, row = json.loads(output.read_text())["rows"]
    assert row.get("error") is None
    assert row["largest_loss_difference"] < 0.01
    assert (row["update"], row["budget"]) == ("host", "5MiB")
    assert row["settings"]
