# SPDX-License-Identifier: Apache-2.0
"""The benchmarks as a whole: what lies where, what leans on what, and what all scripts take."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
KITS = sorted(path.parent for path in FOLDER.glob("*/__init__.py"))
PATHS = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts): path
    for folder in (FOLDER, *KITS)
    for path in folder.glob("*.py")
    if path.name != "__init__.py"
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in PATHS.items()}
SCRIPTS = sorted(name for name, path in PATHS.items() if "__main__" in path.read_text())


def imported(tree):
    """Names of other files, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_none_imports_what_imports_it():
    leaning = {name: TREES.keys() & set(imported(tree)) for name, tree in TREES.items()}
    graphlib.TopologicalSorter(leaning).prepare()  # raises CycleError


def test_what_is_run_lies_at_the_top_and_all_else_is_of_use_to_it():
    used = {name for tree in TREES.values() for name in imported(tree)}
    assert sorted(name for name in TREES if "." not in name) == SCRIPTS
    assert TREES.keys() - used - set(SCRIPTS) == set()


def test_parsers_are_made_in_one_place():
    makers = [name for name, path in PATHS.items() if ".ArgumentParser(" in path.read_text()]
    assert makers == ["kit.measure"]


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
    measure = script("kit.measure")
    words = ["/srv/bench.py", "--output", "/srv/a.json", "--beside", "LIBRARY=/srv/b.so", "x=1"]
    monkeypatch.setattr(measure.sys, "argv", words)
    assert measure.command_line() == "python bench.py --output a.json --beside LIBRARY=b.so x=1"
