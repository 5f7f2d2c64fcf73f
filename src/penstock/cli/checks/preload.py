# SPDX-License-Identifier: Apache-2.0
"""Whether `penstock run` sees what a program does: a known launch, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from penstock.errors import PenstockError

from .library import REINSTALL, TIME_LIMIT_S
from .result import Check

WHY = "penstock run pages what it sees launched; what goes past it, it cannot bring in."


def coverage() -> Check:
    """Launch a kernel under the proxy, and ask whether it was seen."""
    from penstock import preload

    try:
        prepared = preload.prepare()
    except PenstockError as error:
        return Check("run", "fail", error.what, WHY, error.remedy or REINSTALL)
    if prepared is None:
        return Check("run", "skip", "no NVIDIA driver", WHY)
    environment = preload.program_environment(prepared, os.environ, {})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.checks.preload_selftest"],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
            env=environment,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return Check("run", "fail", f"the self-test did not end well: {error}", WHY, "report this")
    observed = f"{found['observed']}, before {prepared.driver}"
    if found["ok"]:
        return Check("run", "ok", observed, WHY)
    return Check("run", "fail", observed, WHY, "unset LD_PRELOAD; else report this, with the line")
