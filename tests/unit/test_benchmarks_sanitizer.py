# SPDX-License-Identifier: Apache-2.0
"""What a run under compute-sanitizer makes of the tool's words."""

from __future__ import annotations

from pathlib import Path

import pytest

MEMCHECK = (
    "========= COMPUTE-SANITIZER\nrows: 140 checks, 0 failed, 51.2 s\n========= ERROR SUMMARY: {}\n"
)
RACECHECK = """========= COMPUTE-SANITIZER
activations: 120 checks, 0 failed, 9.0 s
========= RACECHECK SUMMARY: {} hazards displayed ({} errors, {} warnings)
"""


@pytest.fixture
def sanitizer(script):
    return script("sanitizer")


def test_what_the_tools_say_is_read(sanitizer):
    clean = sanitizer.read("memcheck", "rows", MEMCHECK.format("0 errors"), 60.0)
    assert (clean.errors, clean.checks, clean.failed) == (0, 140, 0)
    assert clean.good
    one = sanitizer.read("memcheck", "rows", MEMCHECK.format("1 error"), 60.0)
    assert one.errors == 1
    assert not one.good
    race = sanitizer.read("racecheck", "activations", RACECHECK.format(3, 2, 1), 60.0)
    assert race.errors == 3
    assert race.checks == 120
    assert not race.good
    assert sanitizer.read("racecheck", "activations", RACECHECK.format(0, 0, 0), 60.0).good


def test_what_tests_and_programs_say_is_counted(sanitizer):
    end = "========= ERROR SUMMARY: 0 errors\n"
    said = {
        "driver": "[doctest] assertions: 4321 | 4319 passed | 2 failed |\n",
        "attach": "2 failed, 12 passed, 3 skipped in 31.02s\n",
        "run cupy": "penstock: 0 pieces of work not fully seen; 148 launches seen, 0 graph\n",
    }
    found = {
        check: sanitizer.read("memcheck", check, text + end, 9.0) for check, text in said.items()
    }
    assert [(each.checks, each.failed) for each in found.values()] == [(4321, 2), (12, 2), (148, 0)]
    two = sanitizer.read("memcheck", "attach", end.replace("0", "3") + end, 9.0)
    assert two.errors == 3  # of all processes


def test_what_came_to_no_end_is_not_good(sanitizer):
    killed = sanitizer.read("memcheck", "rows", "========= COMPUTE-SANITIZER\n", 300.0)
    assert killed.errors is None
    assert not killed.good
    refused = "========= ERROR SUMMARY: 0 errors\n"  # the device, say: nothing ran
    assert not sanitizer.read("memcheck", "rows", refused, 2.0).good
    off = MEMCHECK.format("0 errors").replace("0 failed", "2 failed")
    assert not sanitizer.read("memcheck", "rows", off, 60.0).good


def test_the_planted_fault_has_to_be_found(sanitizer):
    found = "========= ERROR SUMMARY: 64 errors\n"
    assert sanitizer.read("memcheck", sanitizer.FAULT, found, 3.0).good
    missed = "========= ERROR SUMMARY: 0 errors\n"
    assert not sanitizer.read("memcheck", sanitizer.FAULT, missed, 3.0).good
    assert not sanitizer.read("memcheck", sanitizer.FAULT, "", 3.0).good


def test_a_check_that_hangs_is_ended(sanitizer, monkeypatch, tmp_path):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho '========= COMPUTE-SANITIZER'\nsleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = sanitizer.checked("memcheck", "rows", limit=0.5, logs=tmp_path)
    assert found.errors is None
    assert found.seconds < 30


def test_every_check_that_is_named_exists(sanitizer):
    import fusion_conformance

    named = {check for checks in sanitizer.TOOLS.values() for check in checks}
    for paged in sanitizer.PAGED:
        words, _ = sanitizer.command("memcheck", paged)
        assert all(Path(word).exists() for word in words if word.endswith(".py"))
        named.remove(paged)
    assert named <= fusion_conformance.CHECKS.keys()
    assert sanitizer.TOOLS.keys() == sanitizer.FAULTS.keys() == sanitizer.OPTIONS.keys()


def test_races_are_looked_for_in_every_kernel(sanitizer):
    folder = Path(__file__).resolve().parents[2] / "src" / "penstock" / "fusion" / "kernels"
    kernels = set()
    for file in folder.glob("*.py"):
        lines = file.read_text().split("\n")
        # What another kernel calls is compiled into it.
        starts = [i for i, line in enumerate(lines) if line.startswith("@triton.jit")]
        found = [lines[i + 1].removeprefix("def ").partition("(")[0] for i in starts]
        kernels |= {name for name in found if file.read_text().count(f"{name}(") == 1}
    assert {"forward", "backward", "sums"} <= kernels
    assert {f"kne={name}" for name in kernels | {sanitizer.FAULT}} == set(sanitizer.OURS)
    assert set(sanitizer.OURS) <= set(sanitizer.OPTIONS["racecheck"])
