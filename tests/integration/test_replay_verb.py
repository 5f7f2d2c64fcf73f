# SPDX-License-Identifier: Apache-2.0
"""The allocator's goals on recorded work, by ``penstock replay`` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRACES = sorted((Path(__file__).parents[1] / "data" / "traces").glob("*.npz"))


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[tuple[str, str], dict]:
    """Every row of one run over all traces, by trace and allocator."""
    target = tmp_path_factory.mktemp("replay") / "rows.json"
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "replay", *map(str, TRACES), "--json", str(target)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 + 3 * len(TRACES) + 3
    rows = json.loads(target.read_text())
    assert len(rows) == 3 * len(TRACES)
    return {(Path(row["trace"]).stem, row["allocator"]): row for row in rows}


def test_there_are_five_traces():
    assert len(TRACES) == 5


@pytest.mark.parametrize("name", [path.stem for path in TRACES])
def test_it_packs_better_than_either_of_pytorchs(name, found):
    stitch = found[name, "stitch"]
    assert stitch["utilisation"] >= 0.98
    assert stitch["utilisation"] > found[name, "expandable"]["utilisation"]
    assert stitch["utilisation"] > found[name, "native"]["utilisation"]
    assert len({found[name, kind]["peak_requested_bytes"] for kind in ("stitch", "native")}) == 1


@pytest.mark.parametrize("name", [path.stem for path in TRACES])
def test_mapping_costs_little_and_less_in_the_steady_state(name, found):
    stitch = found[name, "stitch"]
    assert stitch["modelled_driver_ms"] <= 0.02 * stitch["trace_ms"]
    assert stitch["modelled_driver_ms_second_half"] <= 0.01 * stitch["trace_ms"] / 2


def test_the_allocator_is_fast(found):
    # The goal is 300 ns on a machine of its own; this one may be busy.
    assert found["gpt2xl_generate", "stitch"]["ns_per_op"] < 1500


def test_a_capacity_just_above_the_peak_suffices(found):
    path = next(path for path in TRACES if path.stem == "gpt2xl_ckpt")
    reserved = found["gpt2xl_ckpt", "stitch"]["peak_reserved_bytes"]
    run = [sys.executable, "-m", "penstock", "replay", str(path), "--gpu-memory", str(reserved)]
    done = subprocess.run([*run, "--json"], capture_output=True, text=True, timeout=60, check=False)
    rows = {row["allocator"]: row for row in json.loads(done.stdout)}
    assert rows["stitch"]["out_of_memory_at_event"] is None
    assert rows["native"]["out_of_memory_at_event"] is not None
    assert done.returncode == 4  # of native
