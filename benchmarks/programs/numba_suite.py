# SPDX-License-Identifier: Apache-2.0
"""numba-cuda's own tests, as its package has them, on one GPU: how each ended.

    python benchmarks/programs/numba_suite.py --jobs 8

Each module of tests has a process of its own. Before every fourth test it writes and reads back
memory of its own, so that a tight budget is always full. Knows nothing of Penstock: the same run
with and without it has to give the same.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from steps import script_parser

SWEEP_EVERY = 4
BLOCK = 16 << 20
PACKAGE = "numba.cuda.tests"
# Without a GPU, or of the time that a launch takes.
LEFT_OUT = ("cudasim", "nocuda", "benchmarks")
MODULE_S = 180  # that the tests of one may take


class Ballast:
    """Device memory of the primary context, had from the driver itself, whatever a test resets."""

    def __init__(self, mib: int) -> None:
        self._count = (mib << 20) // BLOCK
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._blocks: list[ctypes.c_uint64] = []
        self._read = (ctypes.c_uint32 * (BLOCK // 4))()
        self.wrong = 0

    def sweep(self) -> None:
        """Read back what was written; write it where there is none, or a reset has taken it."""
        if not self._in_context(self._check):
            self._blocks = []
            self._in_context(self._fill)

    def _in_context(self, work: Callable[[], bool]) -> bool:
        context, before = ctypes.c_void_p(), ctypes.c_void_p()
        cuda = self._cuda
        if cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
            return False
        done = cuda.cuCtxPushCurrent_v2(context) == 0 and work()
        cuda.cuCtxPopCurrent_v2(ctypes.byref(before))
        if not self._blocks:
            cuda.cuDevicePrimaryCtxRelease_v2(0)
        return done

    def _fill(self) -> bool:
        for number in range(self._count):
            block = ctypes.c_uint64()
            if self._cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(BLOCK)):
                return False
            self._blocks.append(block)
            words = ctypes.c_size_t(BLOCK // 4)
            if self._cuda.cuMemsetD32_v2(block, ctypes.c_uint32(number + 1), words):
                return False
        return True

    def _check(self) -> bool:
        for number, block in enumerate(self._blocks):
            if self._cuda.cuMemcpyDtoH_v2(self._read, block, ctypes.c_size_t(BLOCK)):
                return False
            expected = (number + 1).to_bytes(4, "little") * (BLOCK // 4)
            self.wrong += bytes(self._read) != expected
        return bool(self._blocks)


class Outcomes(unittest.TestResult):
    """How each test of a module ended, the ballast swept between them."""

    def __init__(self, ballast: Ballast) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._ballast = ballast

    def startTest(self, test: unittest.TestCase) -> None:
        if self.testsRun % SWEEP_EVERY == 0:
            self._ballast.sweep()
        super().startTest(test)

    def _ended(self, test: Any, how: str) -> None:
        self.found[test.id().removeprefix(f"{PACKAGE}.")] = how

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._ended(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._ended(test, "skipped")

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:
        said = str(error[1]).strip().splitlines()
        self._ended(test, f"{error[0].__name__}: {said[0][:200] if said else ''}")

    addError = addFailure
    addExpectedFailure = lambda self, test, error: self._ended(test, "failed as expected")  # noqa: E731

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._ended(test, "passed: unexpectedly")

    def addSubTest(self, test: unittest.TestCase, subtest: Any, error: Any) -> None:
        if error is not None:
            self.addFailure(subtest, error)


def run_module(name: str, mib: int) -> None:
    """Run a module's tests; the last line is how they ended."""
    ballast = Ballast(mib)
    outcomes = Outcomes(ballast)
    unittest.defaultTestLoader.loadTestsFromName(name).run(outcomes)
    ballast.sweep()
    print(json.dumps({"wrong_ballast": ballast.wrong, "outcomes": outcomes.found}))


def module(name: str, mib: int) -> dict[str, Any]:
    """The same in a process of its own, which may crash or hang."""
    words = [sys.executable, __file__, "--module", name, "--ballast-mib", str(mib)]
    failed = {"wrong_ballast": 0}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=MODULE_S)
    except subprocess.TimeoutExpired:
        return failed | {"outcomes": {name: f"failed: not over after {MODULE_S} s"}}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"wrong')]
    if not lines:
        said = done.stderr.strip().splitlines()[-1:] or [""]
        how = f"failed: the process ended with {done.returncode}: {said[0][:200]}"
        return failed | {"outcomes": {name: how}}
    return json.loads(lines[-1])


def modules() -> list[str]:
    """The names of all modules of tests, which importing them might take a GPU for."""
    where = importlib.util.find_spec(PACKAGE)
    assert where is not None
    assert where.submodule_search_locations is not None
    folder = Path(where.submodule_search_locations[0])
    files = sorted(path.relative_to(folder) for path in folder.rglob("test_*.py"))
    return [
        ".".join([PACKAGE, *path.with_suffix("").parts])
        for path in files
        if path.parts[0] not in LEFT_OUT
    ]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--ballast-mib", type=int, default=768, help="of each process")
    parser.add_argument("--only", default="", help="modules whose names hold this")
    parser.add_argument("--module", help="this one, in this process")
    args = parser.parse_args()
    if args.module:
        run_module(args.module, args.ballast_mib)
        return
    begin = time.monotonic()
    names = [name for name in modules() if args.only in name]
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(lambda name: module(name, args.ballast_mib), names))
    outcomes = {test: [how] for each in found for test, how in each["outcomes"].items()}
    print(
        json.dumps(
            {
                "samples": len(outcomes),
                "wrong_ballast": sum(each["wrong_ballast"] for each in found),
                "seconds": round(time.monotonic() - begin, 1),
                "outcomes": outcomes,
            }
        )
    )


if __name__ == "__main__":
    main()
