# SPDX-License-Identifier: Apache-2.0
"""numba-cuda's own tests, as its package has them, on one GPU: how each ended.

    python benchmarks/programs/numba_suite.py --jobs 8

Before every fourth test each process writes and reads back memory of its own, so that a tight budget
is always full. Knows nothing of Penstock: the same run with and without it has to give the same.
This file is also the plugin of pytest that does so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

SWEEP_EVERY = 4
BLOCK = 16 << 20
# Without a GPU, of the time that a launch takes, and what asks which processes may see a device.
LEFT_OUT = ("cudasim", "nocuda", "benchmarks")
TEST_S = 120  # that one may take
WRONG = "wrong ballast"


class Ballast:
    """Device memory of the primary context, had from the driver itself, whatever a test resets."""

    def __init__(self, mib: int) -> None:
        self._count = (mib << 20) // BLOCK
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._blocks: list[ctypes.c_uint64] = []
        self._read = (ctypes.c_uint32 * (BLOCK // 4))()
        self.wrong = 0

    def sweep(self) -> None:
        """Read back what was written the last time, and write something else."""
        if not self._in_context(self._check):  # a test has reset the device: what was there is gone
            self._blocks = []
            self._in_context(self._fill)

    def _in_context(self, work) -> bool:
        context, before = ctypes.c_void_p(), ctypes.c_void_p()
        done = self._cuda.cuInit(0) == 0
        done = done and self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        done = done and self._cuda.cuCtxPushCurrent_v2(context) == 0
        if done:
            done = work()
            self._cuda.cuCtxPopCurrent_v2(ctypes.byref(before))
        if context and not self._blocks:
            self._cuda.cuDevicePrimaryCtxRelease_v2(0)
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
            self.wrong += bytes(self._read) != (number + 1).to_bytes(4, "little") * (BLOCK // 4)
        return bool(self._blocks)


# ---- The plugin ----------------------------------------------------------------------------------

_held: list[Ballast] = []
_outcomes: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _ballast(request: pytest.FixtureRequest) -> None:
    """Sweep it before every fourth test of a process; wrong words fail the test."""
    tests = request.config.stash.setdefault(COUNT, [0])
    if not _held:
        _held.append(Ballast(int(os.environ["BALLAST_MIB"])))
    if tests[0] % SWEEP_EVERY == 0:
        before = _held[0].wrong
        _held[0].sweep()
        assert _held[0].wrong == before, WRONG
    tests[0] += 1


COUNT = pytest.StashKey[list[int]]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep how it ended, and what a failure says."""
    if report.when == "call" or report.outcome != "passed":
        said = report.outcome
        if said == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            said += f": {getattr(crash, 'message', report.longrepr)}"[:300]
        _outcomes[report.nodeid.rpartition("/tests/")[2]] = said


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave them where the process that waits for it looks."""
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["OUTCOMES"]).write_text(json.dumps(_outcomes))


# ---- The program ---------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--ballast-mib", type=int, default=768, help="of each process")
    parser.add_argument("--only", default="", help="tests whose names hold this")
    args = parser.parse_args()
    import numba.cuda.tests

    folder = Path(numba.cuda.tests.__file__).parent
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = Path(scratch) / "outcomes.json"
        os.environ["OUTCOMES"], os.environ["BALLAST_MIB"] = str(outcomes), str(args.ballast_mib)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        )
        sys.path.insert(0, str(Path(__file__).parent))
        words = [
            str(folder),
            "-q",
            "-n",
            str(args.jobs),
            "--dist",
            "loadfile",
            "--rootdir",
            scratch,
        ]
        words += ["-p", "numba_suite", "-p", "no:cacheprovider", "--timeout", str(TEST_S)]
        words += [f"--ignore={folder / name}" for name in LEFT_OUT]
        pytest.main([*words, *(["-k", args.only] if args.only else [])])
        found = json.loads(outcomes.read_text())
    print(
        json.dumps(
            {
                "samples": len(found),
                "wrong_ballast": sum(WRONG in each for each in found.values()),
                "seconds": round(time.monotonic() - begin, 1),
                "outcomes": {name: [each] for name, each in found.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
