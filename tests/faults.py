# SPDX-License-Identifier: Apache-2.0
"""Make every call and every allocation of every engine fail, and write down how many that were.

The tests are those of each run of CI, which leave some out; here none is, unless --few is given.
Each part runs in a process of its own.

Usage: python tests/faults.py [--few] [--build build/dev] [--jobs N] [--output FILE]
FILE is a result file, to which the run is added.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from runs import ROOT, add_run

PYTEST = (
    "tests/unit/test_attach.py::test_a_failure_at_any_driver_call_is_clean",
    "tests/unit/test_attach_compress.py -k no_failure_of_the_driver",
    "tests/unit/test_managed.py::test_a_failure_at_any_driver_call_is_clean",
    "tests/unit/test_training_loops.py -k failing_driver_call",
    "tests/unit/test_files_write.py::test_every_call_may_fail",
    "tests/preload/test_faults.py -k allocation",
)
NAMES = {"CUDA child: has failures": "the engine behind the proxy"}
PREFIXES = ("driver faults: ", "host memory: ")


def commands(build: Path) -> list[list[str]]:
    """What there is to run."""
    native, memory = str(build / "native_tests"), str(build / "memory_tests")
    found = [[native, "--test-case=CUDA: the engine behind the proxy*"]]
    for program, prefix in ((native, PREFIXES[0]), (memory, PREFIXES[1])):
        words = [program, "--list-test-cases", f"--test-case={prefix}*", "--no-version=true"]
        listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        found += [
            [program, f"--test-case={line.strip()}"]
            for line in listed.splitlines()
            if line.startswith(prefix)
        ]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--confcutdir=tests"]
    return [*found, *[[*pytest, "--timeout=3600", *words.split()] for words in PYTEST]]


def run(words: list[str], build: Path, tally: Path, *, few: bool) -> bool:
    """Whether it went well."""
    more = {"PENSTOCK_FAULTS": str(tally), "LD_LIBRARY_PATH": str(build / "emulated_cuda")}
    if not few:
        more |= {"PENSTOCK_EVERY_CALL": "1", "PENSTOCK_EVERY_ALLOCATION": "1"}
    if words[0] == sys.executable:
        del more["LD_LIBRARY_PATH"]
        more["PENSTOCK_LIBRARY"] = str(build / "libpenstock.so")
        more["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    begin = time.monotonic()
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"{time.monotonic() - begin:.0f} s: {' '.join(words)}", file=sys.stderr, flush=True)
    if done.returncode != 0:
        print(done.stdout[-6000:], file=sys.stderr, flush=True)
    return done.returncode == 0


def counted(tally: Path) -> dict[str, dict[str, int]]:
    """By engine: how many of what."""
    found: dict[str, dict[str, int]] = {}
    for line in tally.read_text(encoding="utf-8").splitlines():
        engine, what, count = line.split("\t")
        for prefix in PREFIXES:
            engine = engine.removeprefix(prefix)
        counts = found.setdefault(NAMES.get(engine, engine), {})
        counts[what] = counts.get(what, 0) + int(count)
    return dict(sorted(found.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--few", action="store_true", help="leave as many out as CI does")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "dev")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    build = options.build.resolve()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as jobs:
        tally = Path(folder) / "tally"
        tally.touch()
        made = partial(run, build=build, tally=tally, few=options.few)
        well = list(jobs.map(made, commands(build)))
        engines = counted(tally)
    seconds = round(time.monotonic() - begin)
    failed = len(well) - sum(well)
    result = {"every": not options.few, "seconds": seconds, "failed": failed, "engines": engines}
    add_run(options.output, result)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
