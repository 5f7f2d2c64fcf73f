# SPDX-License-Identifier: Apache-2.0
"""``penstock replay``: what it shows, what it gives to scripts, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.main import main

pytestmark = pytest.mark.usefixtures("own_folder")

MIB = 2**20
# What scripts read; docs/replay.md says what each is.
FROZEN = {
    "trace": str,
    "allocator": str,
    "events": int,
    "peak_requested_bytes": int,
    "peak_reserved_bytes": int,
    "utilisation": float,
    "map_calls": int,
    "modelled_driver_ms": float,
    "modelled_driver_ms_second_half": float,
    "trace_ms": float,
    "ns_per_op": float,
}


def write(path: Path, events: list[tuple[int, int, int]], stream: int = 0) -> Path:
    """Events as (op, id, size), a millisecond apart."""
    op, number, size = np.array(events, dtype=np.int64).T
    times = np.arange(len(events)) * 1000
    np.savez(path, op=op, id=number, size=size, stream=op * 0 + stream, time_us=times)
    return path


# 30 + 15 MiB; the 30 are free again when 20 MiB are asked for.
EVENTS = [(0, 1, 30 * MIB), (0, 2, 15 * MIB), (2, 1, 30 * MIB), (0, 3, 20 * MIB), (2, 3, 20 * MIB)]


@pytest.fixture
def trace() -> Path:
    return write(Path("a.npz"), EVENTS)


def rows(capsys, *arguments: str) -> list[dict]:
    assert main(["replay", *map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


def test_every_allocator_gets_a_row_with_what_scripts_read(trace, capsys):
    found = rows(capsys, trace)
    assert [row["allocator"] for row in found] == ["stitch", "native", "expandable"]
    for row in found:
        assert {key: type(row[key]) for key in FROZEN} == FROZEN
        assert row["trace"] == "a.npz"
        assert row["events"] == 5
        assert (row["allocations"], row["frees"]) == (3, 2)
        assert row["peak_requested_bytes"] == 45 * MIB
        assert row["utilisation"] == row["peak_requested_bytes"] / row["peak_reserved_bytes"]
        assert row["trace_ms"] == 4.0
        assert row["out_of_memory_at_event"] is None
        assert row["schema_version"] == 1
    reserved = {row["allocator"]: row["peak_reserved_bytes"] for row in found}
    assert reserved["native"] == 46 * MIB
    assert reserved["expandable"] == 60 * MIB
    assert 45 * MIB <= reserved["stitch"] <= 48 * MIB


def test_traces_stay_together_in_the_order_given(trace, capsys):
    write(Path("b.npz"), EVENTS)
    found = rows(capsys, "b.npz", "a.npz")
    assert [row["trace"] for row in found] == ["b.npz"] * 3 + ["a.npz"] * 3


def test_one_allocator_alone(trace, capsys):
    (row,) = rows(capsys, trace, "--allocator", "native")
    assert row["allocator"] == "native"
    assert row["map_calls"] == 2  # segments
    assert row["modelled_driver_ms"] == pytest.approx(2 * 28e-3)


def test_the_table_says_the_same(trace, capsys):
    assert main(["replay", str(trace)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split()[:5] == ["trace", "allocator", "requested", "reserved", "utilisation"]
    assert lines[2].split()[:7] == ["a.npz", "native", "45.0", "MiB", "46.0", "MiB", "97.8%"]
    assert lines[2].endswith("-")  # the time of a model is nobody's
    assert "models of PyTorch's" in out
    assert "error" not in err


def test_a_snapshot_is_read_as_well(capsys):
    entry = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 5}
    with Path("s.pickle").open("wb") as stream:
        pickle.dump({"segments": [], "device_traces": [[entry]]}, stream)
    assert {row["events"] for row in rows(capsys, "s.pickle")} == {1}


@pytest.mark.parametrize("word", ["--json a.npz", "--json a.npz b.npz", "b.npz --json a.npz"])
def test_a_trace_behind_json_is_read_and_not_written_over(word, trace, capsys):
    write(Path("b.npz"), EVENTS)
    content = trace.read_bytes()
    assert main(["replay", *word.split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["trace"] for row in found} == {name for name in word.split() if "npz" in name}
    assert trace.read_bytes() == content


def test_a_result_can_be_written_over(trace, capsys):
    for _ in range(2):
        assert main(["replay", str(trace), "--json", "out.json"]) == 0
    assert len(json.loads(Path("out.json").read_text())) == 3
    assert "native" in capsys.readouterr().out  # people see the table as well


def test_running_out_of_memory_is_told_with_the_event_and_exit_4(trace, capsys):
    arguments = ["replay", str(trace), "--gpu-memory", "48MiB", "--json"]
    assert main(arguments) == 4
    out, err = capsys.readouterr()
    found = {row["allocator"]: row for row in json.loads(out)}
    assert found["native"]["out_of_memory_at_event"] is None
    assert found["stitch"]["out_of_memory_at_event"] is None
    assert found["expandable"]["out_of_memory_at_event"] == 1
    assert found["expandable"]["peak_requested_bytes"] == 30 * MIB
    assert found["expandable"]["peak_reserved_bytes"] <= 48 * MIB
    assert "a.npz: expandable ran out of 48.0 MiB at event 1 of 5, a request of 15.0 MiB" in err
    assert main([*arguments[:-1], "--allocator", "native"]) == 0


def test_what_no_device_holds_is_told_without_a_budget_as_well(tmp_path, capsys):
    arrays = {field: np.zeros(1, np.uint64) for field in ("op", "id", "stream", "time_us")}
    np.savez(tmp_path / "a.npz", size=np.array([1 << 45], np.uint64), **arrays)
    assert main(["replay", str(tmp_path / "a.npz")]) == 4
    err = capsys.readouterr().err
    assert "ran out of 1.00 TiB at event 0 of 1, a request of 32.0 TiB" in err
    assert err.endswith("try: a larger --gpu-memory\n")


def test_the_table_marks_who_ran_out_of_memory(trace, capsys):
    assert main(["replay", str(trace), "--gpu-memory", "20MiB"]) == 4
    out, err = capsys.readouterr()
    assert out.count("out of memory") == 3
    assert "(and 2 more)" in err


def test_packing_options_reach_the_allocator(trace, capsys, monkeypatch):
    (row,) = rows(capsys, trace, "--allocator", "stitch", "--allocator-chunk", "32MiB")
    assert row["peak_reserved_bytes"] == 64 * MIB
    monkeypatch.setenv("PENSTOCK_ALLOCATOR_CHUNK", "64MiB")
    (row,) = rows(capsys, trace, "--allocator", "stitch")
    assert row["peak_reserved_bytes"] == 64 * MIB
    assert row["map_calls"] == 1


def test_switched_off_it_is_pytorchs_allocators_alone(trace, capsys, monkeypatch):
    monkeypatch.setenv("vmmDefragment", "0")
    assert [row["allocator"] for row in rows(capsys, trace)] == ["native", "expandable"]
    assert main(["replay", str(trace), "--allocator", "stitch"]) == 2
    assert "allocator.stitch is off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no trace was given"),
        (["a.npz", "--allocator", "jemalloc"], "jemalloc"),
        (["a.npz", "--gpu-memory", "80%"], "share of a total"),
        (["a.npz", "--gpu-memory", "0"], "no memory at all"),
        (["a.npz", "--allocator-chunk", "3MiB", "--allocator", "stitch"], "power of two"),
        (["a.npz", "--allocator-growth", "some"], "not a size"),
        (["a.npz", "--allocator-stitch-when", "never-ever"], "never-ever"),
    ],
)
def test_usage_errors_are_exit_2(arguments, said, trace, capsys):
    assert main(["replay", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert "try:" in err or "is needed" in err
    assert out == ""


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([(0, 1, 8), (0, 1, 8)], "event 1 (op 0, id 1) allocates what is allocated already"),
        ([(0, 1, 8), (2, 2, 8)], "event 1 (op 2, id 2) frees what is not allocated"),
        ([(0, 1, 8), (1, 2, 8)], "event 1 (op 1, id 2) frees what is not allocated"),
        ([(0, 1, 8), (5, 1, 8)], "event 1 (op 5, id 1) has the unknown op 5"),
    ],
)
@pytest.mark.parametrize("allocator", ["native", "stitch"])
def test_events_that_cannot_have_happened_are_exit_1(events, said, allocator, capsys):
    write(Path("bad.npz"), events)
    assert main(["replay", "bad.npz", "--allocator", allocator]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: bad.npz: {said}\n" in err
    assert "try:" in err


@pytest.mark.parametrize("name", ["missing.npz", "text.npz", "cut.npz"])
def test_files_that_are_no_traces_are_exit_1(name, trace, capsys):
    Path("text.npz").write_text("op,id\n")
    Path("cut.npz").write_bytes(trace.read_bytes()[:300])
    assert main(["replay", str(trace), name, "--json", "out.json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert name in err
    assert "try:" in err
    assert not Path("out.json").exists()


def test_without_numpy_it_says_what_to_install(trace, capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "numpy" else real(name)
    )
    assert main(["replay", str(trace)]) == 3
    assert "pip install 'penstock[trace]'" in capsys.readouterr().err
