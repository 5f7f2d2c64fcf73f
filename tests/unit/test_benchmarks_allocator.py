# SPDX-License-Identifier: Apache-2.0
"""The allocator benchmark's own logic, and its scripts end to end on a CPU."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GIB = 1 << 30


def run(script, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )


def test_shapes_repeat_in_another_order(script):
    work = script("allocator.work").WORKLOADS["gpt2xl_recompute"]
    count = len(work.shapes)
    passes = [[work.order(i + p * count) for i in range(count)] for p in range(2)]
    assert passes[0] == list(work.shapes) != passes[1]
    assert sorted(passes[1]) == sorted(passes[0])


def test_batches_searched_for_begin_with_the_longest(script):
    models = script("allocator.work")
    work = models.with_batch(models.WORKLOADS["opt1.3b_full"], 9)
    assert {shape[0] for shape in work.shapes} == {9}
    lengths = [shape[1] for shape in work.shapes]
    assert lengths[0] == max(lengths) == lengths[-1]
    assert len(set(lengths)) >= 4


def test_find_batch_needs_a_cap(capsys, script):
    with pytest.raises(SystemExit):
        script("allocator_workloads").arguments(
            ["--workload", "x", "--allocator", "native", "--find-batch"]
        )
    assert "--cap" in capsys.readouterr().err


def made_run(work, allocator, reserved, outcomes, label=None):
    return {
        "label": label or f"{work} {allocator}",
        "workload": work,
        "title": work.upper(),
        "allocator": allocator,
        "timed_ms": 100.0 * reserved,
        "outcomes": outcomes,
        "used_by_driver_bytes": (reserved + 1) * GIB,
        "memory": {
            "peak_requested_bytes": 4 * GIB,
            "peak_active_bytes": 5 * GIB,
            "peak_reserved_bytes": reserved * GIB,
            "utilisation": 4 / reserved,
        },
        "timed_from": 1,
        "state_after_step": [[0.1, reserved * GIB, 70], [0.2, reserved * GIB, 73]],
        "allocator_counters": {"penstock.stitches": 12, "penstock.stitch_hits": 3456}
        if allocator == "stitch"
        else {},
    }


def made_document():
    find = {
        **made_run("w", "stitch", 24, []),
        "find_batch": True,
        "cap_bytes": 24 * GIB,
        "largest_batch": 81,
        "tries": [{"fits": True}, {"fits": False, "error": "OutOfMemoryError"}],
    }
    del find["timed_ms"]
    return {
        "title": "T",
        "command": "c",
        "where": {"card": "X", "torch": "2", "date": "d", "commit": "0123456789abcdef"},
        "runs": [
            made_run("w", "native", 8, [1.0, 2.0]),
            made_run("w", "stitch", 5, [1.0, 2.0]),
            made_run("w", "native", 8, [1.0, 2.5], label="w native again"),
            find,
            {
                "label": "calls native",
                "calls": True,
                "allocator": "native",
                "cpu_ns": 400.0,
                "rows": [{"bytes": 1048576, "live": 1000, "ns": 1234.4, "again_ns": 1240.0}],
            },
            {
                "label": "soak stitch",
                "soak": True,
                "allocator": "stitch",
                "seconds": 24.1,
                "threads": 4,
                "streams": 12,
                "counts": {"verified": 5000, "verified_bytes": 7 * GIB},
                "mismatches": 2,
                "passed": False,
                "exit": 1,
            },
            {"label": "w expandable", "skipped": "no time left"},
            {"label": "z native", "timed_ms": 1.0, "error": "stopped after 9 s"},
        ],
    }


def test_page_from_results(script):
    text = script("pages.allocator").section(made_document())
    assert "| W | native | 4.00 | 5.00 | 8.00 | 50.0 % | 9.00 | 800 |  |  |" in text
    assert "|  | stitch | 4.00 | 5.00 | 5.00 | 80.0 % | 6.00 | 500 | 0.625 | yes |" in text
    assert "|  | native again | 4.00 | 5.00 | 8.00 | 50.0 % | 9.00 | 800 | 1.000 | no |" in text
    assert "| W | 24.00 | stitch | 81 | 24.00 | OutOfMemoryError |" in text
    assert "| 1,048,576 | 1,000 | 1234 (1240) |" in text
    assert "| W | 12 | 3,456 | 0 | 0 | 0.00 | 73 | 3 |" in text
    assert "| stitch | 24 | 4 + 1, 12 + 3 | 5,000 | 7.00 | 0 | 0 | 0 | 2 | no |" in text
    assert "| soak stitch | exit code 1 after its result |" in text
    assert "| w expandable | no time left |" in text
    assert "| z native | stopped after 9 s |" in text


def test_suite_has_an_a_a_row_and_ends_with_its_time(tmp_path, script):
    suite = script("allocator_suite")
    args = suite.arguments(["--output", str(tmp_path / "o.json"), "--limit", "0"])
    labels = [plan.label for plan in suite.plans(args)]
    for work in suite.TRAINED:
        rows = ["native", "expandable", "stitch", "native again"]
        assert all(f"{work} {row}" in labels for row in rows)
    assert len(set(labels)) == len(labels)


def test_every_plan_is_a_valid_command(tmp_path, script):
    suite, parsers = script("allocator_suite"), {}
    for name in ("allocator_workloads", "allocator_soak"):
        parsers[f"{name}.py"] = script(name).arguments
    args = suite.arguments(["--output", str(tmp_path / "o.json")])
    for plan in suite.plans(args):
        _, _, *arguments = plan.command(tmp_path / "r.json", ["--device", "cpu", "--tiny"])
        parsed = parsers[plan.script](arguments)
        assert isinstance(parsed, argparse.Namespace)
        assert parsed.wait
        assert parsed.tiny


@pytest.mark.slow
def test_soak_passes_and_a_spoilt_tensor_is_reported(tmp_path):
    common = ("--allocator", "native", "--device", "cpu", "--seconds", "1", "--threads", "2")
    target = tmp_path / "soak.json"
    done = run("allocator_soak.py", *common, "--json", str(target))
    assert done.returncode == 0, done.stderr
    result = json.loads(target.read_text())
    assert result["counts"]["verified"] > 0
    assert result["mismatches"] == 0
    done = run("allocator_soak.py", *common, "--sabotage", "--json", str(target))
    assert done.returncode == 1
    assert "MISMATCH" in done.stderr
    assert "address" in done.stderr
    result = json.loads(target.read_text())
    assert result["mismatches"] == 1
    assert result["mismatch_list"][0]["wrong_elements"] == 1


@pytest.mark.slow
def test_suite_runs_on_a_cpu(tmp_path):
    output = tmp_path / "suite.json"
    done = run(
        "allocator_suite.py", "--device", "cpu", "--tiny", "--output", str(output),
        "--parts", "calls",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads(output.read_text())["runs"]
    assert [row["allocator"] for row in runs] == ["native", "expandable", "stitch"]
    assert all(case["ns"] > 0 for row in runs for case in row["rows"])


@pytest.mark.parametrize("work", ["opt1.3b_full", "gpt2xl_recompute", "gpt2xl_generate"])
def test_a_workload_gives_the_same_twice(work, tmp_path, script):
    pytest.importorskip("transformers")
    models = script("allocator.work")
    outcomes = []
    for _ in range(2):
        small = models.tiny(models.WORKLOADS[work])
        task = script("allocator_workloads").build_task(small, "cpu", small=True)
        outcomes.append([float(task.step(number)) for number in range(3)])
    assert outcomes[0] == outcomes[1]


def test_a_run_that_fails_is_written_down(tmp_path, script):
    suite = script("allocator_suite")
    args = suite.arguments(["--output", str(tmp_path / "o.json"), "--device", "cpu", "--tiny"])
    runner = suite.Suite(args, tmp_path)
    runner.run([suite.Plan(f"p{i}", "no_such_script.py", [], 5) for i in range(2)])
    runs = json.loads((tmp_path / "o.json").read_text())["runs"]
    assert [row["label"] for row in runs] == ["p0", "p1"]
    assert all(row["exit"] != 0 and "no_such_script.py" in row["error"] for row in runs)
