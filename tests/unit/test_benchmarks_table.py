# SPDX-License-Identifier: Apache-2.0
"""The tables of the README and of docs/ say what the result files say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def check(root):
    command = [sys.executable, str(root / "benchmarks" / "table.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_tables_are_those_of_the_results():
    done = check(ROOT)
    assert done.returncode == 0, done.stderr or f"run python benchmarks/table.py\n{done.stdout}"


def test_a_changed_figure_is_found(tmp_path):
    for name in ("benchmarks", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("results"))
    (tmp_path / "benchmarks" / "results").symlink_to(ROOT / "benchmarks" / "results")
    shutil.copy(ROOT / "README.md", tmp_path)
    assert check(tmp_path).returncode == 0
    for name, figure, changed in (
        ("README.md", "| 128 ms, 1.06 |", "| 127 ms, 1.06 |"),
        ("docs/run-benchmarks.md", "| GPT-2 XL, 2 | ", "| GPT-2 XL, 2 | 1"),
    ):
        page = tmp_path / name
        page.write_text(page.read_text(encoding="utf-8").replace(figure, changed), "utf-8")
    done = check(tmp_path)
    assert done.returncode == 1
    assert done.stdout == "README.md is stale\ndocs/run-benchmarks.md is stale\n"
