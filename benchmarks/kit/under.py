# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own, plainly or under `penstock run`, and what they printed."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[1] / "programs"
LAST = 6  # steps that count


def penstock(*arguments: str) -> list[str]:
    """A command line of Penstock's."""
    return [sys.executable, "-m", "penstock", *arguments]


def under(budget: int, *options: str) -> list[str]:
    """What stands before a program that runs within a budget."""
    return penstock("run", "--gpu-memory", str(budget), *options, "--summary", "--")


def run(command: list[str], seconds: float, more: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON that a program's last line is, with what Penstock said; or an `error`."""
    environ = os.environ | (more or {})
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environ)
    except subprocess.TimeoutExpired:
        return {"error": f"not over after {seconds:.0f} s"}
    found: dict[str, Any] = {"seconds": round(time.monotonic() - begin, 1)}
    found["said"] = [line for line in done.stderr.splitlines() if line.startswith("penstock:")]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        found["error"] = f"exit {done.returncode}: {done.stderr.strip()[-400:]}"
        return found
    return {**found, **json.loads(lines[-1])}


def run_logged(
    command: list[str], seconds: float, log: Path, more: dict[str, str] | None = None
) -> int:
    """Exit status of a program whose words go to a file; in time, or all it started is killed."""
    with log.open("w") as words:
        process = subprocess.Popen(
            command,
            stdout=words,
            stderr=subprocess.STDOUT,
            env=os.environ | (more or {}),
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def median_of_last(values: list[float], count: int = LAST) -> float | None:
    return round(statistics.median(values[-count:]), 3) if values else None
