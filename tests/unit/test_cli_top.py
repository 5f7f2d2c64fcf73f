# SPDX-License-Identifier: Apache-2.0
"""``penstock top``: what the driver's tool and /proc say, and where they say nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from penstock.cli import top
from penstock.cli.main import main

GIB = 1 << 30
TOOL = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "GPU-a, 0, NVIDIA H200, 143771, 9216, 37"
                 echo "GPU-b, 1, NVIDIA H200, 143771, 0, [N/A]" ;;
  *) echo "GPU-a, 41, 1024"; echo "GPU-a, 42, 8192"; echo "GPU-a, 43, [N/A]" ;;
esac
"""


def tool(folder, text, monkeypatch):
    path = folder / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.fixture
def proc(tmp_path, monkeypatch):
    tool(tmp_path, TOOL, monkeypatch)
    own = {
        "41": {"cmdline": "python\0other.py\0", "maps": "/usr/lib/libc.so.6\n", "environ": ""},
        "42": {
            "cmdline": "python\0train\x1b[31m.py\0",
            "maps": "7f /opt/penstock/lib/libpenstock.so\n",
            "environ": "A=1\0PENSTOCK_GPU_MEMORY=8GiB\0",
        },
    }
    for pid, files in own.items():
        (tmp_path / "proc" / pid).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / "proc" / pid / name).write_text(text)
    return tmp_path / "proc"


def test_each_gpu_with_its_programs_the_largest_first(proc):
    first, second = top.look(proc)
    assert (first.total_bytes, first.used_bytes, first.busy) == (143771 << 20, 9 * GIB, 37)
    assert (second.index, second.busy, second.processes) == (1, None, [])
    assert [asdict(each) for each in first.processes] == [
        {
            "pid": 42,
            "command": r"python train\x1b[31m.py",
            "device_bytes": 8 * GIB,
            "penstock": True,
            "budget": "8GiB",
        },
        {
            "pid": 41,
            "command": "python other.py",
            "device_bytes": GIB,
            "penstock": False,
            "budget": None,
        },
        {"pid": 43, "command": "?", "device_bytes": None, "penstock": None, "budget": None},
    ]


def test_rows_end_where_the_terminal_does(proc):
    shown = list(top.lines(top.look(proc), 40))
    assert shown[0].startswith("GPU 0  NVIDIA H200: 9.00 GiB of 140")
    assert "8GiB" in shown[2]
    assert all(len(line) <= 40 for line in shown[2:5])
    assert shown[-1] == "  no program"


def test_a_live_process_of_ours_is_known_by_its_library(tmp_path, monkeypatch):
    """With the real /proc, and this library."""
    code = (
        "from penstock.native.library import library; library(); print('up', flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_GPU_MEMORY": "7GiB"},
    )
    try:
        assert child.stdout.readline() == "up\n"
        tool(tmp_path, TOOL.replace("42, 8192", f"{child.pid}, 8192"), monkeypatch)
        (found,) = (each for each in top.look()[0].processes if each.pid == child.pid)
    finally:
        child.communicate("\n")
    assert found.penstock
    assert found.budget == "7GiB"
    assert "penstock.native.library" in found.command


def test_as_json(proc, capsys):
    assert main(["top", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verb"], document["schema_version"]) == ("top", 1)
    assert [gpu["name"] for gpu in document["gpus"]] == ["NVIDIA H200"] * 2


def test_without_a_driver_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["top"]) == 3
    assert "no nvidia-smi" in capsys.readouterr().err
    tool(tmp_path, "#!/bin/sh\necho NVIDIA-SMI has failed; exit 9\n", monkeypatch)
    assert main(["top"]) == 1
    assert "nvidia-smi failed: NVIDIA-SMI has failed" in capsys.readouterr().err


def test_it_looks_again_until_it_is_interrupted(proc, monkeypatch, capsys):
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top, "sleep", wait)
    assert main(["top", "--every", "0.5"]) == 130
    assert waits == [0.5] * 3
    assert capsys.readouterr().out.count("GPU 0  NVIDIA H200") == 3
    assert main(["top", "--every", "0"]) == 2


@pytest.mark.parametrize("seconds", ["0", "nan", "1e300"])
def test_a_pause_that_nobody_can_wait_for(seconds, proc):
    assert main(["top", "--every", seconds]) == 2


@pytest.mark.parametrize(
    "answer", ["GPU-1, 0, H200", "GPU-1, x, H200, 143771, 10, 5", "GPU-1, 0, H200, 1, 1, 1, 1"]
)
def test_an_answer_of_another_form_is_one_error(answer, tmp_path, monkeypatch, capsys):
    tool(tmp_path, f"#!/bin/sh\necho '{answer}'\n", monkeypatch)
    assert main(["top"]) == 1
    assert "nvidia-smi answered in another form" in capsys.readouterr().err


def test_a_name_may_hold_any_bytes(tmp_path, monkeypatch, capsys):
    answer = r"GPU-1, 0, \377\033[2J, 143771, 10, 5\n"
    script = f"#!/bin/sh\ncase $1 in *gpu=*) printf '{answer}';; esac\n"
    tool(tmp_path, script, monkeypatch)
    assert main(["top"]) == 0
    assert "GPU 0  \N{REPLACEMENT CHARACTER}\\x1b[2J: " in capsys.readouterr().out
