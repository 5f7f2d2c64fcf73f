# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots of PyTorch as traces: blocks from before the history, streams, refusals."""

from __future__ import annotations

import collections
import copy
import os
import pickle
from pathlib import Path

import pytest

from penstock.errors import FailedError
from penstock.trace import read_traces


def entry(action: str, addr: int, size: int, time_us: int, stream: int = 0) -> dict:
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": stream,
        "time_us": time_us,
        "frames": [{"name": "f", "filename": "x.py", "line": 3}],
        "compile_context": "N/A",
        "user_metadata": "",
    }


def block(address: int, size: int, state: str, requested: int = 0) -> dict:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": [],
    }


def segment(device: int, address: int, blocks: list[dict], stream: int = 0) -> dict:
    return {
        "device": device,
        "address": address,
        "total_size": sum(piece["size"] for piece in blocks),
        "stream": stream,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


# One device: 0x1000 and 0x9000 were there before; 0x9000 is never touched and live at the end.
SNAPSHOT = {
    "segments": [
        segment(0, 0x1000, [block(0x1000, 0x1000, "inactive")]),
        segment(
            0,
            0x8000,
            [
                block(0x8000, 0x1000, "inactive"),
                block(0x9000, 0x1000, "active_allocated", requested=3000),
                block(0xA000, 0x200, "active_awaiting_free", requested=500),
            ],
            stream=77,
        ),
    ],
    "device_traces": [
        [
            entry("segment_alloc", 0x1000, 0x200000, 98),
            entry("alloc", 0x2000, 100, 100),
            entry("free_requested", 0x1000, 4000, 110),
            entry("free_completed", 0x1000, 4000, 111),
            entry("alloc", 0x1000, 4096, 120, stream=77),
            entry("snapshot", 0, 0, 121),
            entry("alloc", 0xA000, 500, 125, stream=55),
            entry("free_requested", 0xA000, 500, 126, stream=55),
            entry("free_requested", 0x2000, 100, 130),
            entry("free_completed", 0x2000, 100, 129),
        ],
        [],
    ],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
}


def dump(path: Path, snapshot: object) -> Path:
    with path.open("wb") as stream:
        pickle.dump(snapshot, stream)
    return path


def test_a_snapshot_becomes_events_with_what_was_live_before(tmp_path):
    (trace,) = read_traces(dump(tmp_path / "s.pickle", SNAPSHOT))
    assert trace.name == str(tmp_path / "s.pickle")
    #          before: 0x1000, 0x9000; then the history
    assert trace.op.tolist() == [0, 0, 0, 1, 2, 0, 0, 1, 1, 2]
    assert trace.size.tolist() == [4000, 3000, 100, 4000, 4000, 4096, 500, 500, 100, 100]
    assert trace.stream.tolist() == [0, 1, 0, 0, 0, 1, 2, 2, 0, 0]
    # The clock of another thread may be behind: times never fall.
    assert trace.time_us.tolist() == [100, 100, 100, 110, 111, 120, 125, 126, 130, 130]
    ids = trace.id.tolist()
    assert ids[0] == ids[3] == ids[4]
    assert ids[2] == ids[8] == ids[9]
    assert ids[6] == ids[7]
    assert len({ids[0], ids[1], ids[2], ids[5], ids[6]}) == 5


def test_old_snapshots_without_addresses_of_blocks_are_read(tmp_path):
    snapshot = copy.deepcopy(SNAPSHOT)
    for part in snapshot["segments"]:
        for piece in part["blocks"]:
            del piece["address"]
    (old,) = read_traces(dump(tmp_path / "old.pickle", snapshot))
    (new,) = read_traces(dump(tmp_path / "new.pickle", SNAPSHOT))
    assert (old.size == new.size).all()


def test_an_allocation_whose_free_was_not_recorded_is_freed(tmp_path):
    snapshot = {
        "segments": [],
        "device_traces": [[entry("alloc", 1, 10, 5), entry("alloc", 1, 20, 6)]],
    }
    (trace,) = read_traces(dump(tmp_path / "s.pickle", snapshot))
    assert trace.op.tolist() == [0, 2, 0]
    assert trace.id[0] == trace.id[1] != trace.id[2]


def test_each_device_with_a_history_is_a_trace(tmp_path):
    snapshot = {
        "segments": [segment(2, 0x9000, [block(0x9000, 512, "active_allocated", 8)])],
        "device_traces": [
            [entry("alloc", 1, 10, 5)],
            [entry("segment_alloc", 1, 10, 5)],
            [entry("alloc", 1, 20, 5)],
        ],
    }
    path = dump(tmp_path / "s.pickle", snapshot)
    found = read_traces(path)
    assert [trace.name for trace in found] == [f"{path}#0", f"{path}#2"]
    assert [trace.size.tolist() for trace in found] == [[10], [8, 20]]


@pytest.mark.parametrize(
    "snapshot",
    [
        {"segments": [], "device_traces": []},
        {"segments": [], "device_traces": [[], []]},
        {"segments": [], "device_traces": [[entry("segment_alloc", 1, 2, 3)]]},
    ],
)
def test_a_snapshot_without_a_history_says_how_to_get_one(snapshot, tmp_path):
    with pytest.raises(FailedError) as caught:
        read_traces(dump(tmp_path / "s.pickle", snapshot))
    assert "no history" in caught.value.what
    assert "_record_memory_history()" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    "snapshot",
    [
        [],
        7,
        None,
        {"segments": []},
        {"device_traces": [[entry("alloc", 1, 2, 3)]]},
        {"segments": [], "device_traces": [[{"action": "alloc"}]]},
        {"segments": [], "device_traces": [[7]]},
        {"segments": 7, "device_traces": [[entry("alloc", 1, 2, 3)]]},
        {"segments": [{}], "device_traces": [[entry("alloc", 1, 2, 3)]]},
        {"segments": [], "device_traces": [[entry("alloc", "x", 2, 3)]]},
        {"segments": [], "device_traces": [[entry("alloc", 1, -2, 3)]]},
        {"segments": [], "device_traces": [[entry("alloc", 1, 2**70, 3)]]},
    ],
)
def test_plain_data_that_is_no_snapshot_is_refused(snapshot, tmp_path):
    with pytest.raises(FailedError) as caught:
        read_traces(dump(tmp_path / "s.pickle", snapshot))
    assert "not a memory snapshot" in caught.value.what
    assert caught.value.remedy


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def test_a_pickle_runs_no_code(tmp_path):
    path = dump(tmp_path / "s.pickle", {"segments": Bomb(tmp_path / "touched")})
    with pytest.raises(FailedError, match=r"asks for (posix|nt)\.system"):
        read_traces(path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("value", [collections.OrderedDict(a=1), Path("x"), int, {1, 2} | {3}])
def test_anything_but_plain_data_is_refused(value, tmp_path):
    path = dump(tmp_path / "s.pickle", value)
    with pytest.raises(FailedError, match="not a memory snapshot"):
        read_traces(path)


def test_a_pickle_cut_off_anywhere_is_refused(tmp_path):
    whole = dump(tmp_path / "s.pickle", SNAPSHOT).read_bytes()
    for length in range(2, len(whole) - 1, 29):
        (tmp_path / "b.pickle").write_bytes(whole[:length])
        with pytest.raises(FailedError) as caught:
            read_traces(tmp_path / "b.pickle")
        assert caught.value.remedy
