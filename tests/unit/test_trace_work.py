# SPDX-License-Identifier: Apache-2.0
"""Recordings of programs: what is read, and what is refused with one line and a remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.errors import FailedError
from penstock.trace import read_traces, read_work
from penstock.trace.work import HEADER, OP_ALLOCATE, OP_TOUCH, OP_WORK, RECORD

EVENTS = [
    (OP_ALLOCATE, 0, 0, 1, 10, 4096),
    (OP_WORK, 1, 0, 2, 20, 5 + (1 << 32)),
    (OP_TOUCH, 1, 0, 1, 0, 4096),
    (OP_TOUCH, 0, 0, 1, 64, 64),
    (OP_WORK, 0, 1, 1, 30, 0),
    (OP_TOUCH, 1, 0, 1, 0, 4096),
]


def write(path: Path, *, records: bytes | None = None, **changes: object) -> Path:
    header = np.zeros((), HEADER)
    known = {
        "magic": b"PNSTWORK",
        "version": 1,
        "header_bytes": 64,
        "record_bytes": 24,
        "device": 2,
        "process": 77,
        "budget": 1 << 30,
        "device_bytes": 2 << 30,
    }
    for field, value in {**known, **changes}.items():
        header[field] = value
    body = np.array(EVENTS, RECORD).tobytes() if records is None else records
    path.write_bytes(header.tobytes() + body)
    return path


def test_a_recording_is_read_whole(tmp_path):
    trace = read_work(write(tmp_path / "a.trace"))
    assert len(trace) == 6
    assert (trace.budget_bytes, trace.device_bytes) == (1 << 30, 2 << 30)
    assert trace.records.tolist() == EVENTS


@pytest.mark.parametrize(
    ("cut", "left"),
    [(0, 6), (1, 4), (24, 4), (48, 4), (49, 1), (71, 1)],
)
def test_what_the_end_cut_off_is_left_out(cut, left, tmp_path):
    """Cut within the last touch, before it, before its work, and within the work before that."""
    whole = np.array(EVENTS, RECORD).tobytes()
    path = write(tmp_path / "a.trace", records=whole[: len(whole) - cut])
    if left == 1:
        with pytest.raises(FailedError, match="holds no work"):
            read_work(path)
    else:
        assert len(read_work(path)) == left


def test_a_longer_header_of_a_later_minor_change_is_skipped(tmp_path):
    body = bytes(16) + np.array(EVENTS, RECORD).tobytes()
    trace = read_work(write(tmp_path / "a.trace", records=body, header_bytes=80))
    assert trace.records.tolist() == EVENTS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "of version 2 .* this reads version 1"),
        ({"record_bytes": 32}, "records of 32 bytes"),
        ({"magic": b"PNSTWURK"}, "is not the recording of a program"),
        ({"records": b""}, "holds no work"),
    ],
)
def test_what_cannot_be_read_is_said(changes, said, tmp_path):
    with pytest.raises(FailedError, match=said):
        read_work(write(tmp_path / "a.trace", **changes))


def test_a_file_that_ends_too_early(tmp_path):
    path = write(tmp_path / "a.trace")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FailedError, match="within its header"):
        read_work(path)
    with pytest.raises(FailedError, match="cannot be read: No such file"):
        read_work(tmp_path / "b.trace")


def test_a_trace_of_allocations_does_not_say_what_uses_them(tmp_path):
    np.savez(tmp_path / "a.npz", op=[0], id=[0], size=[1], stream=[0], time_us=[0])
    with pytest.raises(FailedError, match=r"trace of allocations.*penstock run --record"):
        read_work(tmp_path / "a.npz")


def test_replay_says_that_it_is_no_trace_of_allocations(tmp_path):
    with pytest.raises(FailedError, match="not a trace of allocations"):
        read_traces(write(tmp_path / "a.trace"))
