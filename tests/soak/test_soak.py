# SPDX-License-Identifier: Apache-2.0
"""Some rounds of the soak, and some kills; the programs beside this run for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("words", [("soak.py", "--rounds", "15"), ("kills.py", "--kills", "4")])
def test_nothing_is_lost_or_left(words, tmp_path):
    done = subprocess.run(
        [sys.executable, str(HERE / words[0]), *words[1:], "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
