# SPDX-License-Identifier: Apache-2.0
"""docs/fusion.md is what its text and figures make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current():
    command = [sys.executable, str(ROOT / "benchmarks" / "fusion_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
