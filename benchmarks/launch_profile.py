# SPDX-License-Identifier: Apache-2.0
"""Where the launching thread's time goes under `penstock run`: GPT-2 XL's forwards, sampled.

    python benchmarks/launch_profile.py --output benchmarks/results/run/profile.json

The program runs plainly and under budgets of what it needs, divided; each time some forwards are
timed, and some more sampled every 100 us. A row has the median of the former, and of the latter
each module's and function's share of a step: by where the thread is (`modules`), and by what is on
its stack (`inclusive`, Penstock's own functions; `calls`, what the engine calls). Functions have
names where the engine's library has symbols: a build by CMake, named by PENSTOCK_LIBRARY.

With the GPU's own time of a plain step (`gpu_busy_ms`, by the profiler) it tells who sets the pace.
"""

from __future__ import annotations

import bisect
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from measure import default_dtype, device_events, output_parser
from record import Record
from under import PROGRAMS, run, under

RATIOS = (0.8, 1.04, 1.25)
STEPS, LEARNING = 12, 14
PERIOD_US = 100
OURS = ("libpenstock.so", "preload/libcuda.so.1")  # the engine, the proxy before the driver


# ---- Within the program -----------------------------------------------------------------------


def forwards(model: str = "gpt2-xl") -> Callable[[], float]:
    """A forward pass of a model of `programs/hf_lm.py`, and how many ms it took."""
    import torch

    sys.path.insert(0, str(PROGRAMS))
    from steps import gpt2

    with default_dtype(torch.float16):
        network = gpt2(model).eval()
    tokens = torch.randint(0, 50257, (1, 1024)).cuda()

    def step() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.inference_mode():
            network(tokens, use_cache=False)
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    return step


def program(sampler: str, samples: str, busy: bool) -> None:
    """What is sampled; prints one JSON object."""
    import torch

    library = ctypes.CDLL(sampler)
    step = forwards()
    for _ in range(LEARNING):
        step()
    found: dict[str, Any] = {"step_ms": [round(step(), 3) for _ in range(STEPS)]}
    if library.sampler_start(ctypes.c_long(PERIOD_US)) != 0:
        raise OSError("the system gives no timer for a thread")
    found["sampled_step_ms"] = [round(step(), 3) for _ in range(STEPS)]
    if library.sampler_stop(samples.encode()) != 0:
        raise OSError(f"{samples} cannot be written")
    found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    if busy:
        busy_us = sum(event.self_device_time_total for event in device_events(step))
        found["gpu_busy_ms"] = round(busy_us / 1e3, 3)
    print(json.dumps(found))


# ---- Around it --------------------------------------------------------------------------------


@cache
def symbols(file: str) -> tuple[list[int], list[str]]:
    """Offsets and names of a library's functions."""
    listed = subprocess.run(
        ["nm", "-C", "--defined-only", file], capture_output=True, text=True, check=False
    ).stdout
    parts = [line.split(" ", 2) for line in listed.splitlines()]
    found = sorted((int(p[0], 16), p[2]) for p in parts if len(p) == 3 and p[1] in "tTwW")
    return [each[0] for each in found], [each[1] for each in found]


def named(frame: str) -> tuple[str, str]:
    """Module and function of a frame; the driver is libcuda, wherever it lies."""
    offset, file, symbol = frame.split("|")
    if not file.endswith(OURS):
        module = Path(file).name
        return (
            "libcuda" if module.startswith("libcuda") and "rt" not in module else module
        ), symbol
    offsets, names = symbols(file)
    at = bisect.bisect(offsets, int(offset, 16)) - 1
    symbol = names[at].partition("(")[0] if at >= 0 else symbol
    return ("engine" if file.endswith(OURS[0]) else "proxy"), symbol.removeprefix("penstock::")


def shares(samples: Path) -> dict[str, Any]:
    """What the samples say, in shares of all."""
    modules: Counter[str] = Counter()
    inclusive: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    stacks = [line.split() for line in samples.read_text(encoding="utf-8").splitlines()]
    for stack in stacks:
        frames = [named(frame) for frame in stack]
        if not frames:
            continue
        modules[frames[0][0]] += 1
        ours = [i for i, (module, _) in enumerate(frames) if module in ("engine", "proxy")]
        inclusive.update({frames[i][1] for i in ours})
        # The first of the driver's own frames below the engine's: what it called.
        if ours and frames[ours[0]][0] == "engine" and ours[0] > 0:
            module, name = frames[ours[0] - 1]
            calls[name or module] += 1
    parts = {"modules": modules, "inclusive": inclusive, "calls": calls}
    return {"samples": len(stacks)} | {
        name: {key: round(n / len(stacks), 4) for key, n in found.most_common(24)}
        for name, found in parts.items()
    }


def paged(how: str, command: list[str], budget: int | None) -> dict[str, Any]:
    """What a program printed, under a budget or plainly; `error` if it failed."""
    found = run([*([] if budget is None else under(budget)), *command], 180)
    if "error" not in found:
        found["median_step_ms"] = round(statistics.median(found["step_ms"]), 3)
    return {"how": how, "budget_bytes": budget, **found}


def measured(
    record: Record, row: Callable[[str, int | None], dict[str, Any]], ratios: list[float]
) -> int:
    """A program's rows, plain and within what it needs divided; an exit status."""
    plain = row("plain", None)
    record.add(plain)
    for ratio in ratios if "error" not in plain else ():
        budget = int(plain["peak_allocated_bytes"] / ratio)
        record.add({"ratio": ratio, **row(f"run-{ratio:g}", budget)})
    return 1 if any("error" in each for each in record.rows) else 0


def row(folder: Path, how: str, budget: int | None) -> dict[str, Any]:
    """One run of the program, sampled."""
    samples = folder / f"{how}.samples"
    command = [sys.executable, __file__, "--within", str(folder / "sampler.so"), str(samples)]
    found = paged(how, command if budget is not None else [*command, "--busy"], budget)
    return found if "error" in found else {**found, **shares(samples)}


def main() -> int:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--ratios", nargs="+", type=float, default=list(RATIOS))
    parser.add_argument("--within", nargs=2, metavar=("SAMPLER", "SAMPLES"), help="used by itself")
    parser.add_argument("--busy", action="store_true", help="used by itself")
    args = parser.parse_args()
    if args.within is not None:
        program(*args.within, args.busy)
        return 0
    if args.output is None:
        parser.error("--output is missing")
    title = "Where the launching thread's time goes: GPT-2 XL, forward"
    record = Record(args.output, title=title)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC"]
        source = PROGRAMS / "sampler.c"
        subprocess.run([*build, "-o", str(folder / "sampler.so"), str(source)], check=True)
        return measured(record, partial(row, folder), args.ratios)


if __name__ == "__main__":
    sys.exit(main())
