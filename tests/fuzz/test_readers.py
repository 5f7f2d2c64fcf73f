# SPDX-License-Identifier: Apache-2.0
"""Some seconds of fuzzing, from another seed each day; the program beside this runs for longer."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("readers.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", ["npz,pickle,snapshot", "work", "result,json", "options,checkpoint"]
)
def test_readers_refuse_what_is_wrong_and_nothing_else(kinds, tmp_path):
    seed = int(time.time()) // 86400 * 1_000_000
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--kinds", kinds, "--inputs", "400", "--seed", str(seed)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count(" 0 findings\n") == kinds.count(",") + 1
