# SPDX-License-Identifier: Apache-2.0
"""The shell completes verbs and flags, as docs/reference/cli.md says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [("penstock est", 1, {"plain,estimate"}), ("penstock report --tr", 2, {"plain,--trace"})],
)
def test_words_are_completed(words, number, expected):
    asked = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['penstock']; import penstock.__main__"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(done.stdout.split()) == expected
