# SPDX-License-Identifier: Apache-2.0
"""What runs on a GPU under NVIDIA's compute-sanitizer: accesses out of bounds, and races.

    python benchmarks/sanitizer.py --output benchmarks/results/sanitizer.json

The driver's contract and the tests of attach() on a GPU (of `cmake --preset dev`), programs of
three frameworks under `penstock run` within less than they need, and those checks of
fusion_conformance.py that run kernels of ours; each under a tool and in a process of its own, as
many at a time as there are cores. For the fused kernels torch's caching allocator is off: in a
block of its pool a row too far is no error. First a kernel with the very fault is run under each
tool, which has to find it. Ends with 1 if a tool finds anything else, or a check does not end in
time.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from fusion_conformance import SHARES
from kit.measure import output_parser
from kit.record import Record
from kit.under import PROGRAMS, run_logged, under

from penstock.units import MIB

ROOT = Path(__file__).resolve().parent.parent
PRODUCTS = [f"products {number}" for number in range(SHARES)]
# Programs under `penstock run`: file, options, bytes of the budget.
RUN = {
    "run triton": ("triton_scale.py", ["--tensors", "24", "--mib", "8", "--steps", "4"], 96 * MIB),
    "run cupy": ("cupy_sweep.py", ["--arrays", "12", "--side", "2048", "--steps", "4"], 160 * MIB),
    "run torch": ("hf_train.py", "--model small --seq-len 128 --steps 4".split(), 320 * MIB),
}
ATTACH = ("test_attach.py", "test_training_any_loop.py")
PAGED = ["driver", "attach", *RUN]
# By what each can tell: bad addresses of whole models too. racecheck fails itself on the products'
# kernel ("failed to handle a hardware exception"), with which memcheck finds nothing wrong.
TOOLS = {
    "memcheck": [*PAGED, "rows", "activations", "autocast", "models", *PRODUCTS],
    "racecheck": ["rows", "activations"],
}
FAULT = "fault"
# Names of the kernels in penstock.fusion.kernels, exactly. Races are looked for in those alone:
# the library's wait for each other in ways that the tool counts as races, slowly.
OURS = [f"kne={name}" for name in ("forward", "backward", "sums", FAULT)]
OPTIONS = {
    # Calls of the driver that may fail, as torch's asking whose a pointer is, are no bad accesses.
    # Nor is the host looked at: for a backtrace of Python the tool waits for the interpreter, whose
    # thread may be waiting for that very launch, and keeps frames with their tensors.
    "memcheck": ["--report-api-errors", "no", "--show-backtrace", "device"],
    "racecheck": [part for name in OURS for part in ("--kernel-name", name)],
}
FAULTS = {
    "memcheck": 'extern "C" __global__ void fault(int* x) { x[64 + threadIdx.x] = 1; }',
    "racecheck": """extern "C" __global__ void fault(int* x) {
        __shared__ int s[64];
        s[threadIdx.x] = x[threadIdx.x];
        x[threadIdx.x] = s[63 - threadIdx.x];
    }""",
}
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
# Comparisons, and how many failed: of our own checks, of doctest, of pytest; a run's launches.
CHECKS = [
    re.compile(r": (\d+) checks, (\d+) failed"),
    re.compile(r"assertions: +(\d+) +\| +\d+ passed +\| +(\d+) failed"),
    re.compile(r"(?=.*?(\d+) passed)(?:(\d+) failed)?.* in [\d.]+s"),
    re.compile(r"(\d+) launches seen, ()"),
]


@dataclass
class Found:
    """What a tool said of a check.

    Attributes:
        tool: Of compute-sanitizer.
        check: Of `TOOLS`, or `FAULT`.
        errors: That it found; None where it came to no end.
        checks: Comparisons that were made meanwhile.
        failed: Of these.
        seconds: Taken.
    """

    tool: str
    check: str
    errors: int | None
    checks: int
    failed: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether it is as it has to be."""
        if self.check == FAULT:
            return bool(self.errors)
        return self.errors == 0 and self.checks > 0 and self.failed == 0


def command(tool: str, check: str) -> tuple[list[str], dict[str, str]]:
    """A check's command line, and what its environment has besides."""
    if check in RUN:
        file, options, budget = RUN[check]
        return [*under(budget), sys.executable, str(PROGRAMS / file), *options], {}
    if check == "driver":
        return [str(ROOT / "build" / "dev" / "native_tests"), "--test-case=CUDA: keeps*"], {}
    if check == "attach":
        tests = [str(ROOT / "tests" / "unit" / name) for name in ATTACH]
        pytest = [sys.executable, *"-m pytest -q -p no:cacheprovider -m gpu".split()]
        # The tests' own conftest alone: the documents' needs more than a GPU's machine may have.
        return [*pytest, f"--confcutdir={ROOT / 'tests'}", *tests], {}
    here = Path(__file__).parent
    own = [str(here / "sanitizer.py"), "--fault", tool]
    words = own if check == FAULT else [str(here / "fusion_conformance.py"), "--only", check]
    return [sys.executable, *words], {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def checked(tool: str, check: str, *, limit: float, logs: Path) -> Found:
    """Run one check under one tool."""
    begin, log = time.monotonic(), logs / f"{tool}-{check.replace(' ', '-')}.log"
    words, more = command(tool, check)
    sanitizer = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", *OPTIONS[tool]]
    run_logged([*sanitizer, *words], limit, log, {**more, "OMP_NUM_THREADS": "1"})
    return read(tool, check, log.read_text(errors="replace"), time.monotonic() - begin)


def read(tool: str, check: str, text: str, seconds: float) -> Found:
    """The figures of a tool's output: errors of all processes, and the comparisons made."""
    summary = ["".join(each) for each in SUMMARY.findall(text)]
    errors = sum(map(int, summary)) if summary else None
    counts = next((found[-1] for each in CHECKS if (found := each.findall(text))), ("0", "0"))
    checks, failed = (int(part or 0) for part in counts)
    return Found(tool, check, errors, checks, failed, round(seconds, 1))


def fault(tool: str) -> None:
    """Run a kernel that the tool has to complain of."""
    kernel = torch.cuda._compile_kernel(FAULTS[tool], "fault")
    x = torch.zeros(64, dtype=torch.int32, device="cuda")
    kernel(grid=(1, 1, 1), block=(64, 1, 1), args=[x])
    torch.cuda.synchronize()


def main() -> int:
    parser = output_parser(__doc__, required=False)
    parser.add_argument(
        "--logs", type=Path, default=Path(tempfile.gettempdir()), help="where the tools' words go"
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one check")
    parser.add_argument("--checks", nargs="+", help="those alone; the planted fault besides")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--fault", choices=list(FAULTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fault:
        fault(args.fault)
        return 0
    if shutil.which("compute-sanitizer") is None:
        parser.error("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    found: list[Found] = []
    title = "What runs on a GPU under compute-sanitizer"
    record = Record(args.output, key="found", title=title)
    for tool in args.tools:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            run = partial(checked, tool, limit=args.limit, logs=args.logs)
            checks = [each for each in TOOLS[tool] if each in (args.checks or TOOLS[tool])]
            for one in pool.map(run, [FAULT, *checks]):
                found.append(one)
                record.add(asdict(one))
    return 0 if all(one.good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
