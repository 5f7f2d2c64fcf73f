# SPDX-License-Identifier: Apache-2.0
"""All of the allocator benchmark on one card, one process a run, into one JSON.

    python benchmarks/allocator_suite.py --output benchmarks/results/allocator/h200.json

Every workload under native (twice: the second is the A/A row), expandable_segments and stitch, the
cost of a call, the soak, the largest batch under a cap. The next run's imports happen while one
runs; device work never overlaps. The file is written after every run, so that what was measured
stays when time runs out: no run is begun that its estimate says would end after --limit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocator.process import ALLOCATORS
from kit.measure import output_parser
from kit.record import Record

HERE = Path(__file__).parent
TRAINED = ("opt1.3b_full", "gpt2xl_recompute", "gpt2xl_generate", "opt1.3b_lora_recompute")
FIND = (("gpt2xl_recompute", 76), ("opt1.3b_full", 64))  # where the search begins at 24 GiB
# zero3 is left out where DeepSpeed is not installed.
PARTS = ("calls", "soak", "workloads", "find", "zero3")


@dataclass
class Plan:
    """One process: a script, its arguments, how long it may take on an H200."""

    label: str
    script: str
    arguments: list[str]
    seconds: float

    def command(self, result: Path, extra: list[str]) -> list[str]:
        script = [sys.executable, str(HERE / self.script), *self.arguments]
        return [*script, "--json", str(result), "--wait", *extra]


def plans(args: argparse.Namespace) -> list[Plan]:
    """Cheap and decisive ones first."""
    made = []
    if "calls" in args.parts:
        for name in args.allocators:
            options = ["--workload", "calls", "--allocator", name]
            made.append(Plan(f"calls {name}", "allocator_workloads.py", options, 12))
    if "soak" in args.parts:
        soaks = (("stitch", args.soak), ("native", args.soak / 3))
        for name, seconds in (each for each in soaks if each[0] in args.allocators):
            options = ["--allocator", name, "--seconds", str(seconds)]
            made.append(Plan(f"soak {name}", "allocator_soak.py", options, seconds + 15))
    if "workloads" in args.parts:
        for work in args.workloads:
            made += _of_workload(work, args, 25)
    if "find" in args.parts:
        for work, first in FIND:
            if work not in args.workloads:
                continue
            for name in args.allocators:
                options = ["--workload", work, "--allocator", name, "--find-batch"]
                options += ["--cap", args.cap, "--first-batch", str(first)]
                made.append(Plan(f"find {work} {name}", "allocator_workloads.py", options, 35))
    if "zero3" in args.parts and importlib.util.find_spec("deepspeed"):
        made += _of_workload("opt1.3b_lora_zero3", args, 45)
    return made


def _of_workload(work: str, args: argparse.Namespace, seconds: float) -> list[Plan]:
    rows = [(name, name) for name in args.allocators]
    if "native" in args.allocators:
        rows.append(("native", "native again"))
    steps = ["--steps", str(args.steps)] if args.steps else []
    return [
        Plan(
            f"{work} {label}",
            "allocator_workloads.py",
            ["--workload", work, "--allocator", name, *steps],
            seconds,
        )
        for name, label in rows
    ]


class Suite(Record):
    """Runs plans one after another, the next one's imports done ahead."""

    def __init__(self, args: argparse.Namespace, scratch: Path) -> None:
        title = "The stitching allocator beside PyTorch's own"
        super().__init__(args.output, args.limit, key="runs", title=title)
        self.args, self.scratch = args, scratch
        self.extra = ["--device", args.device, *(["--tiny"] if args.tiny else [])]

    def start(self, plan: Plan, number: int) -> Any:
        """Start a process; it imports and waits for a line."""
        log = (self.scratch / f"{number}.log").open("w")
        command = plan.command(self.scratch / f"{number}.json", self.extra)
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True
        )

    def finish(self, plan: Plan, number: int, process: Any) -> dict[str, Any]:
        """Let it go, wait for it, read its result."""
        begin = time.monotonic()
        row: dict[str, Any] = {"label": plan.label}
        try:
            # Three times the estimate, and never into the time after the limit.
            process.communicate("go\n", timeout=max(5.0, min(3 * plan.seconds, self.left + 30)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            row["error"] = f"stopped after {time.monotonic() - begin:.0f} s"
        except BrokenPipeError:
            process.wait()
        row["wall_s"] = round(time.monotonic() - begin, 2)
        row["exit"] = process.returncode
        result = self.scratch / f"{number}.json"
        if result.exists():
            row.update(json.loads(result.read_text()))
        if process.returncode != 0:
            log = (self.scratch / f"{number}.log").read_text()
            if not result.exists():
                row.setdefault("error", log.strip().split("\n")[-1][:300])
            print(log[-4000:], file=sys.stderr)
        return row

    def run(self, todo: list[Plan]) -> None:
        waiting = self.start(todo[0], 0) if todo else None
        for number, plan in enumerate(todo):
            process, waiting = waiting, None
            if self.left < plan.seconds and not self.args.tiny:
                if process is not None:
                    process.communicate("")  # the end of its input ends it
                self.add({"label": plan.label, "skipped": "no time left"})
                continue
            process = process or self.start(plan, number)
            if number + 1 < len(todo):
                waiting = self.start(todo[number + 1], number + 1)
            self.add(self.finish(plan, number, process))


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = output_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--workloads", nargs="+", default=list(TRAINED))
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument("--limit", type=float, default=345.0, help="seconds for everything")
    parser.add_argument("--soak", type=float, default=24.0, help="seconds of it under stitch")
    parser.add_argument("--cap", default="24GiB", help="for the largest batch")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    with tempfile.TemporaryDirectory() as scratch:
        suite = Suite(args, Path(scratch))
        suite.run(plans(args))
        suite.write()
    return 1 if any(row.get("exit") for row in suite.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
