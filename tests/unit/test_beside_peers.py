# SPDX-License-Identifier: Apache-2.0
"""benchmarks/beside_peers.py in little: what it runs, and that peers leave a model as it was."""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager
from functools import partial

import pytest
import torch

pytest.importorskip("transformers")

OWN = """
import torch
from torch import nn

def build():
    with torch.device("{device}"):
        layers = [nn.Linear(256, 256) for _ in range(12)]
        layers[3].weight = layers[0].weight
        return nn.Sequential(*layers, nn.BatchNorm1d(256)).eval()

def step(model, device):
    return model(torch.ones(2, 256, device=device))
"""


@pytest.fixture
def run(script, tmp_path):
    """Runs the script with arguments; gives its exit status and rows."""
    main = script("beside_peers").main

    def run(*words):
        output = tmp_path / "rows.json"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            status = main(["--small", "--samples", "1", "--output", str(output), *words])
        return status, json.loads(output.read_text())["rows"]

    return run


def check(status, rows, names):
    assert [(row["name"], row["how"]) for row in rows if "resident" not in row["how"]] == [
        (name, "penstock") for name in names
    ]
    assert all(row.get("exact", True) and row.get("within_budget", True) for row in rows)
    assert not [row for row in rows if "error" in row]
    assert status == 0


@pytest.mark.slow
def test_a_held_out_model(run):
    check(*run("--only", "llama"), ["llama forward", "llama generate 32"])


def test_a_pipeline(run):
    pytest.importorskip("diffusers")
    status, rows = run("--only", "flux-pipeline", "--steps", "2")
    check(status, rows, ["flux picture 64, 2 steps"])
    attached = rows[-1]
    # CLIP, T5, two steps, the decoder: each time that it was run, twice beside the timed ones.
    assert attached["stats"]["passes"] >= 2 * 5
    weights = rows[0]["weight_bytes"]
    assert rows[0]["touched_bytes"][2] == rows[0]["touched_bytes"][3] < weights
    assert len(rows[0]["touched_bytes"]) == 5


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_file_of_ones_own(run, tmp_path, device):
    path = tmp_path / f"own_{device}.py"
    path.write_text(OWN.format(device=device))
    check(*run("--model", str(path)), [f"own_{device}"])


@pytest.mark.slow
def test_what_fails_is_told_and_the_rest_runs(run, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("def build():\n    raise ValueError('no weights here')\n")
    status, rows = run("--only", "bert", "--model", str(path))
    assert status == 1
    assert [row.get("error") for row in rows] == [None] * 3 + ["ValueError: no weights here"]


@pytest.mark.parametrize("level", ["leaf_level", "block_level"])
def test_a_peer_leaves_the_model_as_it_was(script, level):
    pytest.importorskip("diffusers")
    peers, cases = script("models.peers"), script("models.cases")
    card = script("kit.card").Card(small=True)
    case = cases.held_out("llama", card, 32)
    model = case.resident()
    (step, *_) = case.steps(model).values()
    before = [(module, sorted(vars(module))) for module in model.modules()]
    places = [tensor.data_ptr() for tensor in model.parameters()]
    with torch.no_grad():
        want = step().logits
        with peers.offloaded(partial(peers.group_offload(level), room=0), model, card, 0):
            assert any(hasattr(module, "_diffusers_hook") for module in model.modules())
            assert torch.equal(step().logits, want)
        assert torch.equal(step().logits, want)
    assert [(module, sorted(vars(module))) for module in model.modules()] == before
    assert [tensor.data_ptr() for tensor in model.parameters()] == places


@torch.no_grad()
def test_a_peer_is_entered_once_and_what_fails_is_told(script):
    """DeepSpeed cannot be had a second time."""
    beside, cases, suites = map(script, ("beside_peers", "models.cases", "attach.suite"))
    args = beside.arguments(["--small", "--only", "llama", "--tokens", "2", "--peer-samples", "1"])
    suite = suites.Suite(args)
    case = cases.held_out("llama", suite.card, 2)
    model = case.resident()
    residents = beside.residents_of(suite, "peers", case, model)
    entered = []

    def peer(model, device, room):
        entered.append(room)
        if len(entered) == 2:
            raise RuntimeError("a second time")

    steps = case.steps(model)
    for _ in range(2):
        beside.Beside(suite, "own", model, residents, 1 << 20, None).add_rows(peer, steps)
    rows = [row for row in suite.rows if row["how"] == "own"]
    assert [row["name"] for row in rows] == [*steps, *steps]
    assert [row.get("exact") for row in rows] == [True, True, None, None]
    assert [row.get("error") for row in rows] == [None] * 2 + ["RuntimeError: a second time"] * 2
    assert len(entered) == 2


@torch.no_grad()
def test_what_runs_out_of_memory_is_tried_again_with_less_of_it_for_weights(script):
    beside, cases, suites = map(script, ("beside_peers", "models.cases", "attach.suite"))
    suite = suites.Suite(beside.arguments(["--small", "--only", "bert", "--peer-samples", "1"]))
    case = cases.held_out("bert", suite.card, 2)
    model = case.resident()
    residents = beside.residents_of(suite, "peers", case, model)
    rooms = []

    def peer(model, device, room):
        rooms.append(room)
        if len(rooms) < 3:
            raise torch.OutOfMemoryError("too much of it")

    most = (1 << 40) - max(each.others for each in residents.values())
    how, steps = "accelerate-dispatch", case.steps(model)
    beside.Beside(suite, how, model, residents, 1 << 40, None).add_rows(peer, steps)
    assert rooms == [most, int(0.75 * most), int(0.5 * most)]
    rows = [row for row in suite.rows if row["how"] == how]
    assert ["error" in row for row in rows] == [True, True, False]


@torch.no_grad()
def test_a_peer_that_fails_when_it_is_left_says_so(script, monkeypatch):
    beside, cases, suites = map(script, ("beside_peers", "models.cases", "attach.suite"))
    suite = suites.Suite(beside.arguments(["--small", "--only", "bert", "--peer-samples", "1"]))
    case = cases.held_out("bert", suite.card, 2)
    model = case.resident()
    residents = beside.residents_of(suite, "peers", case, model)

    @contextmanager
    def offloaded(*_):
        yield
        raise RuntimeError("on leaving")

    monkeypatch.setattr(beside.peers, "offloaded", offloaded)
    steps = case.steps(model)
    beside.Beside(suite, "own", model, residents, 1 << 20, None).add_rows(int, steps)
    rows = [row for row in suite.rows if row["how"] == "own"]
    assert [row["name"] for row in rows] == [*steps, "afterwards"]
    assert rows[-1]["error"] == "RuntimeError: on leaving"
