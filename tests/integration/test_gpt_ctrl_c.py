# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a ``penstock gpt`` that runs as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SMALL = ["--device", "emulated", "--model", "tiny", "--seq-len", "8", "--gpu-memory", "400KiB"]


@pytest.mark.slow
def test_ctrl_c_ends_a_running_process_without_a_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_EMULATED_GRANULARITY", "16KiB")
    arguments = [*SMALL, "--steps", "1000000", "-v", "--json", "out.json"]
    # What a shell runs in the background has it ignored, and would hand that on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", "gpt", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    signal.signal(signal.SIGINT, before)
    try:
        for line in child.stderr:
            if "step=3 " in line:
                break
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)  # nobody of its group is left
