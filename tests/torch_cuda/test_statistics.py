# SPDX-License-Identifier: Apache-2.0
"""What torch tells of memory under Penstock: statistics, snapshots, histories."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from torch.cuda import _memory_viz

MIB = 1 << 20
CHUNK = 8 * MIB  # the largest


def stat(name):
    return torch.cuda.memory_stats()[name]


def test_allocated_is_rounded_and_requested_is_not():
    a = torch.empty(1000, dtype=torch.uint8, device="cuda")
    b = torch.empty(3 * MIB + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 1024 + 3 * MIB + 512
    assert stat("requested_bytes.all.current") == 1000 + 3 * MIB + 1
    assert stat("allocated_bytes.small_pool.current") == 1024
    assert stat("allocated_bytes.large_pool.current") == 3 * MIB + 512
    assert stat("allocation.all.current") == 2
    chunks = stat("segment.all.current")
    assert chunks * 2 * MIB <= torch.cuda.memory_reserved() <= chunks * CHUNK
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del a, b
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_reserved() > 0
    assert torch.cuda.max_memory_allocated() == 1024 + 3 * MIB + 512


def test_peaks_and_sums_begin_anew():
    torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.max_memory_allocated() == 8 * MIB
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == MIB
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
    assert stat("allocated_bytes.all.allocated") == 9 * MIB
    torch.cuda.reset_accumulated_memory_stats()
    assert stat("allocated_bytes.all.allocated") == 0
    assert stat("allocated_bytes.all.current") == MIB
    del kept


def test_every_name_of_torch_s_own_statistics_is_there(run_python):
    code = """
import json, torch
torch.empty(1, device="cuda")
print(json.dumps(sorted(torch.cuda.memory_stats())))
"""
    native = set(json.loads(run_python(code).splitlines()[-1]))
    torch.empty(1, device="cuda")
    missing = native - set(torch.cuda.memory_stats())
    assert missing <= {"num_oom_rejections"}
    assert len(native) > 60


def test_the_summary_is_a_table():
    kept = torch.empty(5 * MIB, device="cuda")
    text = torch.cuda.memory_summary()
    assert "Allocated memory      |  20480 KiB |" in text
    del kept


def test_accelerator_tells_the_same():
    kept = torch.empty(3 * MIB, device="cuda")
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() == 12 * MIB
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    assert torch.accelerator.max_memory_allocated() == 12 * MIB
    del kept
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == 0
    assert torch.cuda.memory_reserved() > 0
    torch.accelerator.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_the_sizes_of_a_memory_snapshot_add_up():
    blocks = [torch.empty(10 * MIB + 1, dtype=torch.uint8, device="cuda") for _ in range(16)]
    del blocks[::2]
    joined = torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
    segments = torch.cuda.memory_snapshot()
    assert sum(each["total_size"] for each in segments) == torch.cuda.memory_reserved()
    assert sum(each["allocated_size"] for each in segments) == torch.cuda.memory_allocated()
    assert sum(each["requested_size"] for each in segments) == stat("requested_bytes.all.current")
    active = [
        block["address"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    expected = {tensor.data_ptr() for tensor in [*blocks, joined]}
    assert sorted(active) == sorted(expected)
    for segment in segments:
        place = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == place
            place += block["size"]
        assert place == segment["address"] + segment["total_size"]


def allocate_here():
    return torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")


def test_a_history_has_the_places_that_allocate(tmp_path):
    torch.cuda.memory._record_memory_history()
    kept = allocate_here()
    torch.empty(MIB, device="cuda")
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    trace = snapshot["device_traces"][0]
    names = [entry["action"] for entry in trace]
    assert names.count("alloc") == 2
    assert names.count("free_requested") == names.count("free_completed") == 1
    first = next(entry for entry in trace if entry["action"] == "alloc")
    assert first["size"] == 7 * MIB
    assert first["addr"] == kept.data_ptr()
    assert [frame["name"] for frame in first["frames"]][:2] == [
        "allocate_here",
        "test_a_history_has_the_places_that_allocate",
    ]
    assert first["frames"][0]["filename"] == __file__
    assert first["frames"][0]["line"] == allocate_here.__code__.co_firstlineno + 1
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)
    live = [
        block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert [block["frames"][0]["name"] for block in live] == ["allocate_here"]
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert "MemoryViz" in page
    assert "7.0MiB" in _memory_viz.trace(snapshot)
    assert _memory_viz.segsum(snapshot)
    del kept


def every_block_lies_in_a_segment(snapshot):
    """What memory_viz does: go back event by event; every block must be in a segment then."""
    segments = {(each["address"], each["total_size"]) for each in snapshot["segments"]}
    blocks = {
        block["address"]
        for each in snapshot["segments"]
        for block in each["blocks"]
        if block["state"] != "inactive"
    }
    for entry in reversed(snapshot["device_traces"][0]):
        address, size, action = entry.get("addr"), entry["size"], entry["action"]
        if action == "alloc":
            assert address in blocks
            blocks.remove(address)
        elif action == "free_completed":
            assert address not in blocks
            blocks.add(address)
        elif action in ("segment_unmap", "segment_free"):
            segments.add((address, size))
        elif action == "segment_alloc":
            assert any(begin == address for begin, _ in segments)
            segments = {each for each in segments if each[0] != address}
        elif action == "segment_map":
            around = [s for s in segments if s[0] <= address and address + size <= s[0] + s[1]]
            assert around, "a run of chunks that nobody knows"
        for block in blocks:
            assert any(begin <= block < begin + length for begin, length in segments), action


def test_memory_viz_can_go_back_through_stitches():
    torch.cuda.memory._record_memory_history()
    blocks = [torch.empty(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(14)]
    del blocks[1::2]
    first = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    every_block_lies_in_a_segment(torch.cuda.memory._snapshot())
    del first
    every_block_lies_in_a_segment(torch.cuda.memory._snapshot())
    second = torch.empty(90 * MIB, dtype=torch.uint8, device="cuda")
    del blocks
    torch.cuda.empty_cache()
    every_block_lies_in_a_segment(torch.cuda.memory._snapshot())
    torch.cuda.memory._record_memory_history(enabled=None)
    del second


def test_what_is_recorded_can_be_chosen():
    torch.cuda.memory._record_memory_history(context=None, skip_actions=["free_requested"])
    torch.empty(MIB, device="cuda")
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert {entry["action"] for entry in trace} >= {"alloc", "free_completed"}
    assert "free_requested" not in {entry["action"] for entry in trace}
    assert all(entry["frames"] == [] for entry in trace)
    torch.cuda.memory._record_memory_history(max_entries=3)
    for _ in range(5):
        torch.empty(MIB, device="cuda")
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) == 3
    torch.cuda.memory._record_memory_history("state")
    kept = torch.empty(MIB, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    assert snapshot["device_traces"] == [[]]
    assert any(block["frames"] for each in snapshot["segments"] for block in each["blocks"])
    torch.cuda.memory._record_memory_history(enabled=None)
    assert torch.cuda.memory._snapshot()["device_traces"] == [[]]
    del kept


def test_a_budget_can_be_lowered_and_read_back():
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.125)
    torch.cuda.set_per_process_memory_fraction(0.03125)
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.03125)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(70 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    # Never beyond what enable() was told.
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(0.125)
    torch.empty(70 * MIB, dtype=torch.uint8, device="cuda")
