# SPDX-License-Identifier: Apache-2.0
"""What the proxy of `penstock run` costs, and whether it sees everything; on a GPU.

    python benchmarks/interpose_calls.py --output interpose_calls.json

Builds the proxy and a small program (cc, nvcc), and measures: the cost of a launch without the
proxy, with it and no engine, and with an engine for which everything is resident, in turns; the
launches that the proxy counts against CUPTI's, framework by framework; the time that a process
without CUDA takes more to start. The engine is the one named by PENSTOCK_LIBRARY if it has
penstock_interpose, else the one of the tests, which lets every allocation pass.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "preload")]

from interpose_coverage import CASES  # noqa: E402
from measure import output_parser, write_result  # noqa: E402
from proxy_stack import HERE, build_proxy, compile_c, shared  # noqa: E402
from under import run  # noqa: E402

from penstock.preload.folder import find_driver  # noqa: E402

ROUNDS = 5
STARTS = 100
CASE_LIMIT_S = 70
# As the package is built; another compiler may warn of other things.
QUICK = ("-O2", "-Wno-error")


def build(folder: Path) -> dict[str, Path]:
    """The proxy with the driver beside it, an engine, the program."""
    driver = find_driver()
    assert driver is not None, "there is no NVIDIA driver here"
    build_proxy(folder, *QUICK)
    (folder / "libcuda_real.so.1").symlink_to(driver)
    engine = folder / "libengine_double.so"
    compile_c(engine, [HERE / "engine_double.c"], *shared(engine.name), *QUICK)
    named = os.environ.get("PENSTOCK_LIBRARY")
    if named and hasattr(ctypes.CDLL(named), "penstock_interpose"):
        engine = Path(named)
    program = folder / "launch"
    source = ROOT / "benchmarks" / "interpose_launch.cu"
    subprocess.run(["nvcc", "-O2", "-arch=native", "-o", program, source], check=True)
    return {"proxy": folder / "libcuda.so.1", "engine": engine, "program": program}


def environments(built: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """Without the proxy; with it and nothing behind it; with an engine."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LD_PRELOAD", "PENSTOCK_LIBRARY")
    }
    proxied = {**plain, "LD_PRELOAD": str(built["proxy"])}
    return {
        "plain": plain,
        "proxy": {**proxied, "PENSTOCK_LIBRARY": "/nowhere/libpenstock.so"},
        "engine": {**proxied, "PENSTOCK_LIBRARY": str(built["engine"]), "DOUBLE_PASSES": "1"},
    }


def launch_costs(built: Mapping[str, Path]) -> dict[str, Any]:
    """Nanoseconds a launch, the three in turns; medians of the runs, and all runs."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(ROUNDS):
        for name, environment in environments(built).items():
            done = subprocess.run(
                [built["program"]], env=environment, capture_output=True, text=True, check=True
            )
            runs.setdefault(name, []).append(json.loads(done.stdout))
    figures = ("runtime_ns", "driver_ns")
    medians = {
        name: {each: statistics.median(run[each] for run in of) for each in figures}
        for name, of in runs.items()
    }
    more = {
        name: {each: round(found[each] - medians["plain"][each], 1) for each in figures}
        for name, found in medians.items()
        if name != "plain"
    }
    return {"median": medians, "more_than_plain": more, "runs": runs}


def coverage(built: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Each framework's launches by both counts; one that fails says how."""
    found = []
    environment = environments(built)["engine"]
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    for case in CASES:
        command = [sys.executable, str(ROOT / "benchmarks" / "interpose_coverage.py"), case]
        result = {"case": case, **run(command, CASE_LIMIT_S, environment)}
        if "error" not in result:
            wanted = result["cupti_kernels"], result["cupti_graph_launches"]
            # Kernels of graphs are in CUPTI's count, and no launches of their own.
            if wanted[1]:
                result["all_seen"] = result["seen"]["graph_launches"] == wanted[1]
            else:
                result["all_seen"] = result["seen"]["launches"] == wanted[0]
        found.append(result)
    return found


def starts(built: Mapping[str, Path]) -> dict[str, Any]:
    """Milliseconds for a process that makes no call of CUDA."""
    commands = {"true": ["/bin/true"], "python": [sys.executable, "-S", "-c", "pass"]}
    samples: dict[str, list[float]] = {}
    for _ in range(STARTS):
        for name, environment in environments(built).items():
            for program, command in commands.items():
                if name == "proxy":
                    continue
                begin = time.perf_counter()
                subprocess.run(command, env=environment, check=True)
                taken = (time.perf_counter() - begin) * 1e3
                samples.setdefault(f"{program}_{name}", []).append(taken)
    return {name: round(statistics.median(each), 3) for name, each in samples.items()}


def main() -> None:
    parser = output_parser(__doc__)
    parts = {part.__name__: part for part in (launch_costs, starts, coverage)}
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder))
        found: dict[str, Any] = {"engine": built["engine"].name}
        for name in arguments.parts:
            found[name] = parts[name](built)
            # What there is by now survives whatever comes next.
            write_result(arguments.output, found)
    if "launch_costs" in found:
        found["launch_costs"] = found["launch_costs"]["more_than_plain"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
