# SPDX-License-Identifier: Apache-2.0
"""docs/replay.md says what the recorded figures say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    command = [sys.executable, str(ROOT / "benchmarks" / "replay_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
