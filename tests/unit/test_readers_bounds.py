# SPDX-License-Identifier: Apache-2.0
"""Small files that ask for much: what they declare is looked at before it is believed."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from test_cli_replay import EVENTS, write
from test_cli_simulate import recording

from penstock.cli.main import main
from penstock.errors import FailedError, OutOfMemory, PenstockError
from penstock.files import read_bytes, read_json
from penstock.models.checkpoint import open_checkpoint, shipped_checkpoint
from penstock.results import PROMISED, with_head
from penstock.trace import read_traces, read_work
from penstock.trace.events import MOST_EVENTS
from penstock.trace.work import HEADER, RECORD

ARRAYS = {"op": [0, 2], "id": [0, 0], "size": [9, 9], "stream": [0, 0], "time_us": [1, 2]}
LARGE = (1 << 42) - (1 << 20)
BOUNDED = """
import resource, sys, time
from pathlib import Path
import numpy
from penstock.errors import PenstockError
from penstock.trace import read_traces, read_work
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + int(sys.argv[2]),) * 2)
begin = time.process_time()
try:
    {call}
    print("read")
except PenstockError as error:
    print("refused:", error)
print(time.process_time() - begin)
"""


def bounded(call, path, most=1 << 30):
    """What reading in a process of little memory says, and its processor time in seconds."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED.format(call=call), str(path), str(most)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said, seconds = done.stdout.splitlines()
    return said, float(seconds)


def npz(path, **changes):
    """An .npz of members that say what they like."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in ARRAYS.items():
            content = changes.get(name)
            if content is None:
                stream = io.BytesIO()
                np.save(stream, np.array(values))
                content = stream.getvalue()
            archive.writestr(f"{name}.npy", content)
    return path


def header(shape, kind="<u8"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_a_bomb_of_an_npz_is_refused_unpacked(tmp_path):
    bomb = header((1 << 30,)) + bytes(MOST_EVENTS * 8 + (1 << 20))
    path = npz(tmp_path / "a.npz", op=bomb)
    assert path.stat().st_size < 1 << 20
    said, seconds = bounded("read_traces(sys.argv[1])", path, 1 << 28)
    assert "more than those of" in said
    assert seconds < 2


@pytest.mark.parametrize(
    "content",
    [
        header((1 << 40,)),
        header((1 << 62, 1 << 62)),
        header((-1,)),
        header((2,)) + bytes(8),
        header((2,)) + bytes(99),
        header((1,), "|O") + pickle.dumps(print),
        b"x",
        b"",
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"\x93NUMPY\x02\x00" + b"\xff" * 4,
    ],
)
def test_an_array_is_no_larger_than_its_member(content, tmp_path):
    path = npz(tmp_path / "a.npz", size=content)
    said, _ = bounded("read_traces(sys.argv[1])", path, 1 << 28)
    assert said.startswith("refused: ")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a place in a table of 2**31
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40),  # bytes
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 33),  # a bytearray
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62),  # a frame
        b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1),  # a whole number
        b"\x80\x02" + b"(" * 10_000_000,
    ],
    # Its name is in the environment of what a test starts, where 10 MB do not fit.
    ids=["place", "bytes", "bytearray", "frame", "number", "marks"],
)
def test_a_pickle_takes_no_more_than_a_snapshot_of_its_size_can(content, tmp_path):
    (tmp_path / "a.pickle").write_bytes(content)
    said, seconds = bounded("read_traces(sys.argv[1])", tmp_path / "a.pickle", 8 << 30)
    assert said.startswith("refused: ")
    assert seconds < 20


def test_lists_that_stand_in_many_places_are_counted(tmp_path):
    entries = [{"action": "alloc", "addr": 1, "size": 1, "stream": 0, "time_us": 0}] * 1000
    block = {"size": 1, "state": "active_allocated"}
    segment = {"address": 0, "blocks": [block] * 10_000}
    for snapshot in (
        {"device_traces": [entries] * 100_000, "segments": []},
        {"device_traces": [entries], "segments": [segment] * 100_000},
    ):
        (tmp_path / "a.pickle").write_bytes(pickle.dumps(snapshot))
        assert (tmp_path / "a.pickle").stat().st_size < 1 << 20
        with pytest.raises(FailedError, match="devices"):
            read_traces(tmp_path / "a.pickle")


def spoilt(path, **fields):
    recording(path)
    content = bytearray(path.read_bytes())
    changed = np.frombuffer(content, HEADER, count=1).copy()
    for name, value in fields.items():
        changed[name] = value
    content[: HEADER.itemsize] = changed.tobytes()
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("value", [1 << 43, 1 << 63, 2**64 - 1])
@pytest.mark.parametrize("field", ["budget", "device_bytes"])
def test_a_recording_of_a_gpu_that_nobody_has(field, value, tmp_path):
    with pytest.raises(FailedError, match="says that its GPU has"):
        read_work(spoilt(tmp_path / "a.trace", **{field: value}))


@pytest.mark.parametrize("value", [0, 63, 2**32 - 1])
def test_a_header_of_another_size(value, tmp_path):
    with pytest.raises(PenstockError):
        read_work(spoilt(tmp_path / "a.trace", header_bytes=value))


def test_a_recording_larger_than_the_host_is_refused_with_numbers(tmp_path):
    path = spoilt(tmp_path / "a.trace")
    os.truncate(path, 1 << 42)  # a hole: it takes no room on the disk
    with pytest.raises(OutOfMemory, match=r"has 4.00 TiB: a simulation takes 16.0 TiB"):
        read_work(path)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([(1, 0, 0, 0, 0, 1 << 43)], "TiB are allocated"),
        ([(1, 0, 0, n, 0, 1 << 41) for n in range(3)], "TiB are allocated"),
        ([(1, 0, 0, 0, 0, 2**64 - 1)], "TiB are allocated"),
        (
            [(1, 0, 0, 0, 0, LARGE)] + [(3, 0, 0, 1, 0, 1), (4, 0, 0, 0, 0, 0)] * 5000,
            "TiB are touched",
        ),
        (
            [(op, 0, 0, n, 0, LARGE * (op == 1)) for n in range(5000) for op in (1, 2)],
            "TiB are touched",
        ),
    ],
)
def test_blocks_that_no_machine_holds(records, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    head = np.zeros(1, HEADER)
    head["magic"], head["version"] = b"PNSTWORK", 1
    head["header_bytes"], head["record_bytes"] = 64, 24
    head["budget"], head["device_bytes"] = 1 << 30, 1 << 31
    work = [(1, 0, 0, 99_999, 0, 4096), (3, 0, 0, 1, 0, 1), (4, 0, 0, 99_999, 0, 0)]
    Path("a.trace").write_bytes(head.tobytes() + np.array(work + records, RECORD).tobytes())
    assert main(["simulate", "a.trace"]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("link", ["1e-12", "1e300"])
def test_a_link_that_no_clock_can_time(link, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recording(Path("a.trace"))
    assert main(["simulate", "a.trace", "--gpu-memory", "60MiB", "--link", link]) == 2
    assert "GB/s is not from 0.001 to 1e+06" in capsys.readouterr().err


def test_a_budget_that_no_machine_has(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recording(Path("a.trace"))
    assert main(["simulate", "a.trace", "--gpu-memory", "1PiB"]) == 2
    assert "4.00 TiB or less" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["report", "replay", "simulate"])
@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "/", "/proc/self/mem", "pipe"])
def test_what_is_no_ordinary_file(place, verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    held = os.open("pipe", os.O_RDWR)
    os.write(held, b"\x80" * 100)
    if (place, verb) != ("pipe", "report"):  # which reads a pipe to its end
        assert main([verb, place]) == 1
        assert "bug of Penstock" not in capsys.readouterr().err
    os.close(held)


def test_a_pipe_of_json_is_read_to_its_end():
    code = "from penstock.files import read_json; print(read_json('/dev/stdin', remedy=''))"
    done = subprocess.run(
        [sys.executable, "-c", code], input='{"a": 1}', capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'a': 1}\n"


def test_no_more_is_read_than_is_of_use(tmp_path):
    (tmp_path / "a").write_bytes(bytes(11))
    assert read_bytes(tmp_path / "a", 11, remedy="") == bytes(11)
    with pytest.raises(FailedError, match=r"has 11 B, more than 10 B; try: another"):
        read_bytes(tmp_path / "a", 10, remedy="another")
    with pytest.raises(FailedError, match="has no end, more than 10"):
        read_bytes("/dev/zero", 10, remedy="another")
    (tmp_path / "a").write_bytes(b'\xef\xbb\xbf{"b": NaN}')
    assert read_json(tmp_path / "a", remedy="") == {"b": None}


ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\ud800"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\ud800"


@pytest.mark.parametrize("terminal", ["", "1"])
def test_nothing_in_a_file_moves_the_cursor(terminal, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", terminal)
    monkeypatch.setenv("COLUMNS", "300")
    rows = [{"name": f"a{ESCAPES}", "exit_code": 4, "error": f"b{ESCAPES}"}]
    compared = {"work": ["finetune"], "rows": rows}
    Path("a.json").write_text(json.dumps(with_head("compare", compared)))
    assert main(["report", "a.json", "--html", "a.html"]) == 0
    out = capsys.readouterr().out
    assert f"a{SHOWN}" in out
    assert f"b{SHOWN}" in out
    assert not set("\x07\x9b\u202e\ud800") & set(out)
    assert not set("\x1b\x07\x9b\u202e") & set(Path("a.html").read_text())


def test_nothing_in_the_name_of_a_file_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "\x1b[31m\udcff\n.npz"
    write(Path(name), EVENTS)
    for arguments in (["replay", name], ["report", name], ["report", f"{name}.json"]):
        main(arguments)
        captured = capsys.readouterr()
        assert not set("\x1b\udcff") & set(captured.out + captured.err)
    assert main(["replay", name, "--json", f"{name}.json"]) == 0
    assert main(["report", f"{name}.json", "--html", "a.html"]) == 0
    assert not set("\x1b\udcff") & set(capsys.readouterr().out)


def test_more_layers_than_tensors_are_refused_before_they_are_named(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    for path in shipped_checkpoint().iterdir():
        (folder / path.name).symlink_to(path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 300_000_000}))
    with pytest.raises(FailedError, match="300,000,000 layers, the files"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "values",
    [
        [5e-324, 5e-324],
        [5e-324, 1e-323],
        [1e-310, 1e-320],
        [9e18, 9.0000000000001e18],
        [1e17, 1e17 + 16],
        [0, 5e-324],
    ],
)
def test_numbers_at_the_ends_of_what_there_is_are_drawn(values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    simulated = {"trace": "a", "policy": "lru", "gpu_memory_bytes": 1, "step_ms": values}
    simulated = dict.fromkeys(PROMISED["simulate"]) | simulated
    Path("a.json").write_text(json.dumps(with_head("simulate", simulated)))
    assert main(["report", "a.json", "--html", "a.html"]) == 0
    assert "nan" not in Path("a.html").read_text().partition("const docs_json")[2]


def test_a_comparison_of_nothing_is_no_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    nothing = with_head("compare", {"work": ["finetune"], "rows": []})
    Path("a.json").write_text(json.dumps(nothing))
    assert main(["report", "a.json", "--html", "a.html"]) == 1
    assert "a.json holds no result" in capsys.readouterr().err
    assert os.listdir() == ["a.json"]
