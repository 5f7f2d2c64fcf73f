# SPDX-License-Identifier: Apache-2.0
"""``penstock simulate``: figures of made-up recordings, its output, and what it refuses."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.main import main
from penstock.trace.work import HEADER, OP_ALLOCATE, OP_FREE, OP_TOUCH, OP_WORK, RECORD, WRITTEN

MIB = 1 << 20
PAGE = 2 * MIB
LAYERS, STEPS, KERNEL_US = 90, 24, 50
# What scripts read; docs/simulate.md says what each is.
FROZEN = {
    "schema_version": int,
    "trace": str,
    "policy": str,
    "gpu_memory_bytes": int,
    "link_gb_per_s": float,
    "hit_ratio": float,
    "bytes_in": int,
    "bytes_out": int,
    "step_ms": list,
    "ideal_ms": float,
    "ratio_to_ideal": float,
    "least_ms": float,
    "ratio_to_least": float,
    "steady_steps": int,
}


def recording(path: Path, *, budget: int = 1 << 40, large: int = 0) -> Path:
    """Layers of one page each, swept in a cycle, with an activation that is made for each step."""
    rows: list[tuple[int, int, int, int, int, int]] = []
    now = 0

    def work(kind: int, function: int, blocks: list[int], us: int) -> None:
        nonlocal now
        rows.append((OP_WORK, 0, kind, len(blocks), now, function))
        rows.extend((OP_TOUCH, WRITTEN, 0, block, 0, 0) for block in blocks)
        now += us * 1000

    for layer in range(1, LAYERS + 1):
        rows.append((OP_ALLOCATE, 0, 0, layer, now, PAGE))
        work(1, 0, [layer], 10)
    for step in range(STEPS):
        hidden = 1000 + step
        rows.append((OP_ALLOCATE, 0, 0, hidden, now, MIB // 8))
        for layer in range(1, LAYERS + 1):
            work(0, 1, [layer, hidden], KERNEL_US)
        rows.append((OP_FREE, 0, 0, hidden, now, 0))
    if large:
        rows.append((OP_ALLOCATE, 0, 0, 5000, now, large))
        work(0, 2, [5000], KERNEL_US)
    header = np.zeros((), HEADER)
    for field, value in (
        ("magic", b"PNSTWORK"),
        ("version", 1),
        ("header_bytes", 64),
        ("record_bytes", 24),
        ("budget", budget),
        ("device_bytes", 4 << 30),
    ):
        header[field] = value
    path.write_bytes(header.tobytes() + np.array(rows, RECORD).tobytes())
    return path


@pytest.fixture
def simulate(tmp_path, monkeypatch, capsys):
    """Run the verb on a recording; its exit code, its JSON, its words on stderr."""
    monkeypatch.chdir(tmp_path)
    trace = recording(tmp_path / "run.trace")

    def run(*arguments: str, file: Path = trace):
        code = main(["simulate", str(file), *arguments, "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else None, said.err

    return run


def test_the_figures_of_each_policy_are_what_theory_says(simulate):
    slots = 60
    found = {}
    for policy in ("lru", "fifo", "belady", "penstock"):
        code, found[policy], words = simulate("--gpu-memory", f"{slots * 2}MiB", "--policy", policy)
        assert code == 0
        assert "warning" not in words
    for document in found.values():
        assert {key: type(document[key]) for key in FROZEN} == FROZEN
        assert len(document["step_ms"]) == STEPS
        # By bytes, what does not fit, and the page that another one takes the place of.
        missing = LAYERS * PAGE - slots * PAGE
        assert missing <= document["least_bytes_in"] <= missing + 2 * PAGE
        assert document["least_bytes_in"] <= document["bytes_in"]
        assert document["recorded_step_ms"] == pytest.approx([LAYERS * KERNEL_US / 1e3] * STEPS)
        # T is 4.5 ms; what has to come takes 1.2 ms.
        assert document["ideal_ms"] == pytest.approx(4.5)
        # The copies come all along, so that no stretch is longer for them.
        assert document["step_least_ms"] == pytest.approx(document["step_ideal_ms"])
        assert document["ratio_to_least"] == pytest.approx(document["ratio_to_ideal"])
    # Each kernel uses its layer's page and the activation's, which always hits.
    assert found["lru"]["hit_ratio"] == found["fifo"]["hit_ratio"] == pytest.approx(0.5)
    assert found["lru"]["bytes_in"] == LAYERS * PAGE
    best = (slots - 2) / (LAYERS - 1)
    assert found["belady"]["hit_ratio"] == pytest.approx((1 + best) / 2, abs=0.01)
    assert found["belady"]["hit_ratio"] - 0.07 < found["penstock"]["hit_ratio"]
    assert found["penstock"]["hit_ratio"] <= found["belady"]["hit_ratio"] + 0.005
    assert found["penstock"]["ahead"] > found["penstock"]["demanded"] > 0
    # Pages of 2 MiB are small: unmapping, mapping and access take the mapper 212 us for each, more
    # than the page's copy, and than the kernels beside it.
    mapper_ms = found["penstock"]["bytes_in"] / PAGE * 0.212
    assert mapper_ms > 4.5
    assert found["penstock"]["ratio_to_ideal"] < 1.05 * mapper_ms / 4.5
    steady = found["lru"]["step_ms"][STEPS // 2 :]
    assert found["lru"]["ratio_to_ideal"] == pytest.approx(statistics.median(steady) / 4.5)
    assert found["lru"]["ratio_to_ideal"] > 2.5


def test_the_last_step_is_told_in_full(simulate, tmp_path):
    _, document, _ = simulate("--gpu-memory", "120MiB")
    busy = {lane: sum(ends[1::2]) - sum(ends[::2]) for lane, ends in document["lanes"].items()}
    step, moved = document["step_ms"][-1], document["step_bytes_in"][-1]
    assert all(ends == sorted(ends) for ends in document["lanes"].values())
    assert document["lanes"]["compute"][-1] == pytest.approx(step, abs=0.001)
    assert busy["compute"] == pytest.approx(LAYERS * KERNEL_US / 1e3, rel=0.05)
    assert busy["in"] == pytest.approx(moved / 55e6, rel=0.25)
    assert busy["out"] < 0.1
    memory = document["memory_over_time"]
    assert memory["weights"][-1] == LAYERS * PAGE
    assert max(memory["requested"]) == LAYERS * PAGE + MIB // 8
    heat = document["heat"]
    assert heat["bytes"] == LAYERS * PAGE
    rows = np.array(heat["touches"]).reshape(-1, heat["columns"])
    assert (rows.sum(axis=1) > 0).all()  # every layer is touched, one after the other
    assert (np.diff(rows.argmax(axis=1)) >= 0).all()
    assert main(["report", "--html", "a.html", "--force", _written(tmp_path, document)]) == 0


def _written(folder, document):
    (folder / "result.json").write_text(json.dumps(document))
    return str(folder / "result.json")


def test_a_slower_link_makes_the_ideal_longer(simulate):
    _, slow, _ = simulate("--gpu-memory", "120MiB", "--link", "5")
    assert slow["ideal_ms"] == pytest.approx(slow["least_bytes_in"] / 5e6, rel=0.05)
    assert slow["ideal_ms"] > 4.5
    assert slow["least_ms"] >= slow["ideal_ms"]
    assert slow["link_gb_per_s"] == 5
    assert slow["ratio_to_ideal"] > 1


def test_changed_weights_go_out_too(simulate):
    _, read, _ = simulate("--gpu-memory", "120MiB", "--policy", "lru")
    _, written, _ = simulate("--gpu-memory", "120MiB", "--policy", "lru", "--kernels-write")
    assert read["bytes_out"] < PAGE
    assert written["bytes_out"] >= LAYERS * PAGE


def test_the_budget_may_be_a_share_or_the_recorded_one(simulate, tmp_path):
    _, share, _ = simulate("--gpu-memory", "50%")
    assert share["gpu_memory_bytes"] == 2 << 30
    file = recording(tmp_path / "own.trace", budget=100 * MIB)
    said = "warning: the program was paged when it was recorded"
    _, own, words = simulate(file=file)
    assert own["gpu_memory_bytes"] == 100 * MIB
    assert said not in words
    _, _, words = simulate("--gpu-memory", "90MiB", file=file)
    assert said in words


def test_at_its_own_budget_a_recording_has_the_engines_calls_already(simulate, tmp_path):
    paged = recording(tmp_path / "paged.trace", budget=100 * MIB)
    whole = recording(tmp_path / "whole.trace")
    _, own, _ = simulate("--gpu-memory", "100MiB", file=paged)
    _, other, _ = simulate("--gpu-memory", "100MiB", file=whole)
    assert own["recorded_step_ms"] == other["recorded_step_ms"]
    steady = own["steady_steps"]
    assert sum(own["step_ms"][-steady:]) < sum(other["step_ms"][-steady:])


def test_steps_are_cut_by_number(simulate):
    _, document, _ = simulate("--gpu-memory", "1GiB", "--steps", "7")
    assert len(document["step_ms"]) == 7
    assert "99999999999999999999 steps of" in simulate("--steps", "9" * 20)[2]
    code, _, words = simulate("--gpu-memory", "1GiB", "--steps", "1000000")
    assert code == 2
    assert "1000000 steps of" in words
    assert "or fewer" in words


def test_the_benchmark_compares_iterations_with_steps(tmp_path, script):
    """Cut by number, each step was 1.09 forwards of GPT-2 XL: the model's making was in them."""
    found = script("simulate_check").simulate(recording(tmp_path / "run.trace"), 120 * MIB, 55.0)
    assert found["recorded_step_ms"] == pytest.approx([LAYERS * KERNEL_US / 1e3] * STEPS)


def test_a_budget_that_one_kernel_does_not_fit_is_out_of_memory(simulate, tmp_path):
    file = recording(tmp_path / "large.trace", large=300 * MIB)
    code, document, words = simulate("--gpu-memory", "120MiB", file=file)
    assert code == 4
    assert document["out_of_memory_at_piece"] == LAYERS + LAYERS * STEPS
    assert "120 MiB do not hold piece 2250 of 2251, which touches 300 MiB" in words


def test_a_budget_below_one_page_names_a_remedy(simulate):
    code, _, words = simulate("--gpu-memory", "1")
    assert code == 2
    assert "a budget of 1 bytes; the least is 2 MiB\n  try: a larger --gpu-memory" in words


def test_work_without_memory_is_simulated(simulate, tmp_path):
    file = tmp_path / "run.trace"
    work = np.array([(OP_WORK, 0, 0, 0, at, 1) for at in (0, 10)], RECORD)
    file.write_bytes(file.read_bytes()[:64] + work.tobytes())
    code, document, _ = simulate("--gpu-memory", "1GiB")
    assert code == 0
    assert document["blocks"] == document["bytes_in"] == 0
    assert main(["report", "--html", "a.html", _written(tmp_path, document)]) == 0


def test_a_trace_of_allocations_is_refused(simulate, tmp_path):
    np.savez(tmp_path / "a.npz", op=[0], id=[0], size=[1], stream=[0], time_us=[0])
    code, _, words = simulate("--gpu-memory", "1GiB", file=tmp_path / "a.npz")
    assert code == 1
    assert "does not say what uses them" in words
    assert "try: penstock run --record FILE" in words


def test_records_that_cannot_have_happened_are_refused(simulate, tmp_path):
    file = tmp_path / "run.trace"
    content = bytearray(file.read_bytes())
    content[64 + 24 + 24 + 4] = 99  # the block that the first piece of work touches
    file.write_bytes(content)
    code, _, words = simulate("--gpu-memory", "1GiB")
    assert code == 1
    assert "run.trace: record 2: there is no block 99" in words


def test_for_people_the_figures_are_lines(tmp_path, capsys):
    file = recording(tmp_path / "run.trace")
    assert main(["simulate", str(file), "--gpu-memory", "120MiB"]) == 0
    titles = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    steady = ["step ms", "ideal ms", "least ms", "hit ratio", "bytes a step"]
    assert titles == ["work", "policy", "steps", *steady]
