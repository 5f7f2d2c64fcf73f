# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md and README's first table say what the result files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_are_those_of_the_results():
    command = [sys.executable, str(ROOT / "benchmarks" / "table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "run python benchmarks/table.py"


def test_a_changed_figure_is_found(tmp_path):
    for name in ("benchmarks", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "benchmarks" / "results").symlink_to(ROOT / "benchmarks" / "results")
    for name in ("benchmarks/table.py", "docs/benchmarks.md", "README.md"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "benchmarks" / "table.py"), "--check"]
    assert subprocess.run(command).returncode == 0
    readme = tmp_path / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace("| 95 ms |", "| 94 ms |"))
    assert subprocess.run(command).returncode == 1
