# SPDX-License-Identifier: Apache-2.0
"""The scripts of the benchmarks as a whole: how they lean on each other, and what all take."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
TREES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.py")}
SCRIPTS = sorted(name for name in TREES if "__main__" in (FOLDER / f"{name}.py").read_text())


def imported(tree):
    """Names of other scripts, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_none_imports_what_imports_it():
    leaning = {name: TREES.keys() & set(imported(tree)) for name, tree in TREES.items()}
    graphlib.TopologicalSorter(leaning).prepare()  # raises CycleError


def test_every_file_is_a_script_or_of_use_to_one():
    used = {name for tree in TREES.values() for name in imported(tree)}
    assert TREES.keys() - used - set(SCRIPTS) == set()


def test_parsers_are_made_in_one_place():
    makers = [n for n in TREES if ".ArgumentParser(" in (FOLDER / f"{n}.py").read_text()]
    assert makers == ["measure"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_help_is_told_without_a_card(name):
    pytest.importorskip("transformers")
    pytest.importorskip("triton")
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_a_result_names_no_folder_of_the_machine(script, monkeypatch):
    measure = script("measure")
    words = ["/srv/bench.py", "--output", "/srv/a.json", "--beside", "LIBRARY=/srv/b.so", "x=1"]
    monkeypatch.setattr(measure.sys, "argv", words)
    assert measure.command_line() == "python bench.py --output a.json --beside LIBRARY=b.so x=1"
