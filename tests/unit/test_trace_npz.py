# SPDX-License-Identifier: Apache-2.0
"""Traces in .npz files: what is read, and what is refused with one line and a remedy."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import FailedError
from penstock.trace import read_traces

EVENTS = {
    "op": [0, 0, 1, 2, 2],
    "id": [4, 9, 4, 4, 9],
    "size": [100, 2**33, 100, 100, 2**33],
    "stream": [0, 1, 0, 0, 1],
    "time_us": [10, 10, 12, 13, 20],
}


def write(path: Path, **changes: object) -> Path:
    arrays = {name: np.array(values) for name, values in EVENTS.items()}
    arrays |= {name: np.asarray(value) for name, value in changes.items() if value is not None}
    kept = {name: array for name, array in arrays.items() if changes.get(name, array) is not None}
    np.savez(path, **kept)
    return path


@pytest.mark.parametrize("kind", ["int64", "uint16", "int32"])
def test_arrays_of_any_whole_numbers_are_read(kind, tmp_path):
    names = ["op", "id", "stream", "time_us"]
    changes = {name: np.array(EVENTS[name], dtype=kind) for name in names}
    (trace,) = read_traces(write(tmp_path / "a.npz", **changes))
    assert len(trace) == 5
    assert trace.name == str(tmp_path / "a.npz")
    for name, values in EVENTS.items():
        assert getattr(trace, name).tolist() == values
    types = ("uint8", "uint32", "uint64", "uint32", "uint64")
    assert tuple(getattr(trace, name).dtype.name for name in EVENTS) == types
    assert all(getattr(trace, name).flags.c_contiguous for name in EVENTS)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_any_compression_is_read(method, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as file:
        for name, values in EVENTS.items():
            content = io.BytesIO()
            np.save(content, np.array(values))
            file.writestr(f"{name}.npy", content.getvalue())
    (trace,) = read_traces(tmp_path / "a.npz")
    assert trace.size.tolist() == EVENTS["size"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"op": None}, "has no array op"),
        ({"stream": None, "time_us": None}, "has no array stream, time_us"),
        ({"id": [1, 2]}, "differ in length: op 5, id 2"),
        ({"size": [0.5] * 5}, "size is not a list of whole numbers (float64"),
        ({"size": [[1] * 5]}, "size is not a list of whole numbers (int64, 2 dimensions"),
        ({"size": 7}, "size is not a list of whole numbers"),
        ({"size": [-1] * 5}, "size holds values from -1 to -1"),
        ({"id": [2**32] * 5}, "id holds values from 4294967296"),
        ({"op": [300] * 5}, "op holds values from 300 to 300"),
        ({"time_us": [5, 4, 6, 7, 8]}, "event 1 is in the past"),
        ({name: np.array([], dtype=int) for name in EVENTS}, "holds no events"),
    ],
)
def test_arrays_that_are_no_trace_are_refused(changes, said, tmp_path):
    with pytest.raises(FailedError) as caught:
        read_traces(write(tmp_path / "a.npz", **changes))
    assert said in caught.value.what
    assert caught.value.what.startswith(str(tmp_path / "a.npz"))
    assert caught.value.remedy


def test_objects_are_refused_unopened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "touched",))

    np.savez(tmp_path / "a.npz", **{name: np.array([Bomb()] * 5) for name in EVENTS})
    with pytest.raises(FailedError, match="cut off or broken"):
        read_traces(tmp_path / "a.npz")
    assert not (tmp_path / "touched").exists()


def test_an_array_that_claims_to_be_huge_is_refused(tmp_path):
    content = io.BytesIO()
    np.save(content, np.zeros(5, dtype=np.uint64))
    header = content.getvalue().replace(b"(5,), }        ", b"(5" + b"0" * 8 + b",), }")
    assert header != content.getvalue()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for name in EVENTS:
            file.writestr(f"{name}.npy", header)
    with pytest.raises(FailedError, match="cut off or broken"):
        read_traces(tmp_path / "a.npz")


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    whole = write(tmp_path / "a.npz").read_bytes()
    for length in range(0, len(whole) - 1, 37):
        (tmp_path / "b.npz").write_bytes(whole[:length])
        with pytest.raises(FailedError) as caught:
            read_traces(tmp_path / "b.npz")
        assert caught.value.remedy


def test_a_file_with_wrong_bytes_is_refused_or_read(tmp_path):
    whole = bytearray(write(tmp_path / "a.npz").read_bytes())
    for position in range(0, len(whole), 11):
        broken = whole.copy()
        broken[position] ^= 0xFF
        (tmp_path / "b.npz").write_bytes(broken)
        try:
            read_traces(tmp_path / "b.npz")
        except FailedError as error:
            assert error.remedy


@pytest.mark.parametrize("content", [b"", b"P", b"op,id,size\n0,1,2\n", b"{}"])
def test_another_kind_of_file_is_refused(content, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(FailedError) as caught:
        read_traces(path)
    assert "arrays op, id, size" in (caught.value.remedy or "") or content == b"P"


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FailedError, match="cannot be read: No such file"):
        read_traces(tmp_path / "missing.npz")
    with pytest.raises(FailedError, match="cannot be read"):
        read_traces(tmp_path)
