# SPDX-License-Identifier: Apache-2.0
"""Every block of code in the README and in docs/ runs, on the emulated GPU.

`python` blocks of a page share a namespace, top to bottom. `sh` blocks have to end well. `console`
blocks are commands after `$` with what they print, in which `...` stands for what varies. A block
that cannot run here is preceded by `<!-- skip: next "why" -->`. Tests marked `gpu` are skipped
where there is none.
"""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

import penstock

# Two processes of tests and torch's threads beside them wait for each other; a test needs one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_MATCHES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _run(command: str) -> str:
    programs = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}\nexit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def _evaluate_sh(example: Example) -> None:
    _run(f"set -e\n{example.parsed}")


def _evaluate_console(example: Example) -> str | None:
    """Run each command; say where it printed something else."""
    checker, problems = doctest.OutputChecker(), []
    for part in ("\n" + example.parsed).split("\n$ ")[1:]:
        command, _, expected = part.partition("\n")
        got = _run(command)
        expected = expected.rstrip() + "\n"
        if not checker.check_output(expected, got, _MATCHES):
            shown = doctest.Example(command, expected)
            problems.append(checker.output_difference(shown, got, _MATCHES))
    return "\n".join(problems) or None


@pytest.fixture(scope="module")
def _page(tmp_path_factory, request):
    """A page's files go to a folder of its own, with the traces that come with the tests."""
    folder = tmp_path_factory.mktemp("page")
    root = Path(__file__).parent
    (folder / "tests").symlink_to(root / "tests")
    (folder / "benchmarks").symlink_to(root / "benchmarks")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    for attachment in penstock.attachments():  # of a page that leaves its last one in place
        attachment.detach()


pytest_collect_file = Sybil(
    parsers=[
        SkipParser(),
        PythonCodeBlockParser(),
        CodeBlockParser("sh", _evaluate_sh),
        CodeBlockParser("console", _evaluate_console),
    ],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    excludes=["docs/reference/cli.md"],  # written from docstrings; its examples are of a GPU
    fixtures=["_page"],
).pytest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is given the most time comes first, so that no process is left alone with it."""
    items.sort(
        key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0)
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
