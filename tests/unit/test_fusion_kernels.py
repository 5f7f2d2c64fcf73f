# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels, in Triton's interpreter, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

TESTS = [
    Path(__file__).parents[1] / "interpreted" / f"{name}.py" for name in ("kernels", "products")
]


@pytest.mark.timeout(280)
@pytest.mark.slow
def test_kernels_in_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, TESTS)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=270,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
