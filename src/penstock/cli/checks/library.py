# SPDX-License-Identifier: Apache-2.0
"""Checks of Penstock itself: whether the native library loads, and whether paging works.

The self-test runs in a process of its own, because what it would find is a bad access, and that
ends a process.
"""

from __future__ import annotations

import json
import subprocess
import sys

from penstock._version import __version__
from penstock.errors import PenstockError

from .result import Check

WHY_EMULATED = "The emulated GPU pages real memory: this shows that paging itself works here."
TIME_LIMIT_S = 60
REINSTALL = "pip install --force-reinstall --no-deps penstock"


def library() -> Check:
    """Whether libpenstock.so loads and belongs to this package."""
    why = "The native library does the paging; nothing works without it."
    try:
        from penstock import native

        version = native.library().penstock_version().decode()
    except PenstockError as error:
        return Check("library", "fail", error.what, why, error.remedy or REINSTALL)
    except ValueError as error:
        return Check("library", "fail", f"it is not the one expected: {error}", why, REINSTALL)
    if version != __version__:
        observed = f"version {version}, the package is {__version__}"
        return Check("library", "fail", observed, why, REINSTALL)
    return Check("library", "ok", f"version {version}", why)


def emulated() -> Check:
    """Whether a model's worth of data survives being paged through an emulated GPU."""
    try:
        run = subprocess.run(
            [sys.executable, "-m", "penstock.cli.checks.selftest"],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(
            "emulated", "fail", f"the self-test did not end: {error}", WHY_EMULATED, "report this"
        )
    try:
        found = json.loads(run.stdout.splitlines()[-1])
        return Check("emulated", "ok" if found["ok"] else "fail", found["observed"], WHY_EMULATED)
    except (IndexError, KeyError, ValueError):
        end = f"signal {-run.returncode}" if run.returncode < 0 else f"exit {run.returncode}"
        last = (run.stderr.strip().splitlines() or [""])[-1]
        observed = f"the self-test ended with {end} {last}".strip()
        return Check("emulated", "fail", observed, WHY_EMULATED, "report this, with the line above")
