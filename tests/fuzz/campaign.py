# SPDX-License-Identifier: Apache-2.0
"""Fuzz the readers and the C API under the sanitizers, and write down what was counted.

Each job goes through all subjects from a seed of its own, beginning at another one, and gives each
the same time. A process that ends in any other way than it should is a finding too.

Usage: python tests/fuzz/campaign.py [--build build/asan] [--seconds S] [--jobs N] [--seed N]
       [--output FILE]     (a result file, to which the run is added)
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from runs import ROOT, add_run  # noqa: E402

API = ("simulate", "replay", "pager", "managed", "allocator", "interposed")
READERS = ("npz", "pickle", "snapshot", "work", "result", "json", "options", "checkpoint")
COUNTS = re.compile(r"^(\w+): (\d+) inputs, (\d+) (\w+), (\d+) findings$", re.MULTILINE)
STARTING_S = 600  # beyond the seconds asked for: what imports take, and the last input
SEEDS = 1 << 40  # of a job
# Short stacks of where memory came from, and no stacks for signals in the threads of which each
# pager makes three, save a quarter of the time; a finding can be run again with both.
ASAN_OPTIONS = "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=3:use_sigaltstack=0"


def command(subject: str, build: Path) -> tuple[list[str], dict[str, str]]:
    """How to fuzz a subject, and in which environment."""
    more = {
        "UBSAN_OPTIONS": "halt_on_error=1",
        "ASAN_OPTIONS": ASAN_OPTIONS,
    }
    if subject in API:
        more["LD_LIBRARY_PATH"] = str(build / "emulated_cuda")
        return [str(build / "api_fuzz"), subject], more
    more["PENSTOCK_LIBRARY"] = str(build / "libpenstock.so")
    more["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        ["ldd", more["PENSTOCK_LIBRARY"]], capture_output=True, text=True, check=True
    )
    runtime = re.search(r"=> (\S*libasan\S*)", said.stdout)
    if runtime:  # it wants to come first, and the library alone to be instrumented
        more["LD_PRELOAD"] = runtime[1]
    words = [sys.executable, str(HERE / "readers.py"), "--kinds", subject]
    return [*words, "--findings", str(build / "findings")], more


class Campaign:
    """The jobs, and what they have counted."""

    def __init__(self, build: Path, seconds: float, seed: int) -> None:
        self._end = time.monotonic() + seconds
        self.seed = seed
        self.build = build
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def job(self, number: int) -> None:
        """All subjects in turn."""
        subjects = API + READERS
        for place in range(len(subjects)):
            subject = subjects[(number * 5 + place) % len(subjects)]
            seconds = (self._end - time.monotonic()) / (len(subjects) - place)
            self._fuzz(subject, self.seed + number * SEEDS, max(1.0, seconds))

    def _fuzz(self, subject: str, seed: int, seconds: float) -> None:
        words, more = command(subject, self.build)
        words += ["--seconds", f"{seconds:.1f}", "--seed", str(seed)]
        done = subprocess.run(
            words,
            env={**os.environ, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds + STARTING_S,
            check=False,
        )
        found = COUNTS.findall(done.stdout)
        with self._lock:
            for name, inputs, number, what, findings in found:
                counts = {"inputs": int(inputs), what: int(number), "findings": int(findings)}
                self.counts[name].update(counts)
            if done.returncode != 0 or not found:
                self.counts[subject]["findings"] += not found
                print(f"{' '.join(words)}\n{done.stdout[-4000:]}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "asan")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    campaign = Campaign(options.build.resolve(), options.seconds, options.seed)
    jobs = [threading.Thread(target=campaign.job, args=(n,)) for n in range(options.jobs)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    inputs = sum(each["inputs"] for each in campaign.counts.values())
    findings = sum(each["findings"] for each in campaign.counts.values())
    run = {
        "sanitizers": "address, undefined",
        "seconds": options.seconds,
        "jobs": options.jobs,
        "seed": options.seed,
        "inputs": inputs,
        "findings": findings,
        "subjects": {name: campaign.counts[name] for name in API + READERS},
    }
    add_run(options.output, run)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
