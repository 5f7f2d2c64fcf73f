# SPDX-License-Identifier: Apache-2.0
"""Timing and provenance, shared by the benchmarks.

Every timed figure is a list of samples after warm-up; a step is timed by CUDA events around the
forward pass, and the host waits for it before it gives the next one, as a program that reads its
logits does.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def output_parser(doc: str | None, *, required: bool = True) -> argparse.ArgumentParser:
    """A script's parser, described by its first line: one that has ``--output FILE``."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--output", type=Path, required=required)
    return parser


def command_line() -> str:
    """This program's; files with whole paths by their names, since those are a machine's."""
    words = (Path(word).name if word.startswith("/") else word for word in sys.argv)
    return " ".join(["python", *words])


def provenance() -> dict[str, Any]:
    """Card, driver, torch, commit, date: what a figure is worth nothing without."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        card = "emulated"
    else:
        card = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    noted = Path(__file__).parent.parent / "COMMIT"
    commit = noted.read_text().strip() if noted.exists() else _git_commit()
    return {
        "card": card.split("\n")[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
    }


def _git_commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def time_steps(step: Callable[[], Any], *, warmups: int, steps: int) -> list[float]:
    """Milliseconds of each of `steps` calls after `warmups` more."""
    for _ in range(warmups):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(steps):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times


def spread(samples: list[float]) -> dict[str, Any]:
    """Median, quartile range and the samples themselves, in ms."""
    ordered = sorted(samples)
    return {
        "median_ms": round(statistics.median(ordered), 3),
        "p10_ms": round(ordered[len(ordered) // 10], 3),
        "p90_ms": round(ordered[-1 - len(ordered) // 10], 3),
        "samples_ms": [round(sample, 3) for sample in samples],
    }


class FreeMemoryWatch:
    """The least free memory that the driver reported while it watched, asked every 2 ms."""

    def __init__(self) -> None:
        self.lowest = torch.cuda.mem_get_info()[0]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.lowest = min(self.lowest, torch.cuda.mem_get_info()[0])
            time.sleep(0.002)

    def __enter__(self) -> FreeMemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def write_result(path: Path, document: dict[str, Any]) -> None:
    """Write one result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
