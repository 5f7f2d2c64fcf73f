# SPDX-License-Identifier: Apache-2.0
"""Where time goes while a program is paged: the launching thread's, or the link's.

    python benchmarks/run_profile.py launches --output benchmarks/results/run/profile.json
    python benchmarks/run_profile.py link --model 6.7b --ratios 1.25 --output link.json

A model's forwards under `penstock run`, plainly and under budgets of what they need, divided.

`launches`: some forwards are timed, and some more sampled every 100 us. A row has the median of the
former, and of the latter each module's and function's share of a step: by where the thread is
(`modules`), and by what is on its stack (`inclusive`, Penstock's own functions; `calls`, what the
engine calls). Functions have names where the engine's library has symbols: a build by CMake, named
by PENSTOCK_LIBRARY. With the GPU's own time of a plain step (`gpu_busy_ms`, by the profiler) it
tells who sets the pace.

`link`: when the program has been learned, some forwards are timed and one more is seen by torch's
profiler, which sees the engine's copies and digests too. A row has, from the first copy of that
forward to the last: how long the link was busy, how often and how long it was idle, and what ended
last before the copy that ended the pause: a digest of a page that leaves, a kernel of the program,
or nothing, which leaves the host, and the way from one engine of the device to another; of pauses
beyond a millisecond, the kernel that ran. Under a budget that the link bounds it should never be
idle.
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
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from kit.measure import default_dtype, device_events, output_parser
from kit.record import Record
from kit.under import PROGRAMS, run, under

# Of each part: its title, its budgets, the forwards that are timed, and those before.
PARTS = {
    "launches": ("Where the launching thread's time goes", (0.8, 1.04, 1.25), 12, 14),
    "link": ("When the link is idle", (1.5, 2.0, 4.0), 8, 20),
}
PERIOD_US = 100
OURS = ("libpenstock.so", "preload/libcuda.so.1")  # the engine, the proxy before the driver
# Copies in, as CUPTI calls them; the engine's kernels, by their names.
COPY, DIGEST = "Memcpy HtoD", "penstock_"
# A pause that is shorter is how copies follow each other; of a longer one it is told what the
# device did meanwhile.
SHORT_US, LONG_US = 3.0, 1000.0

Span = tuple[float, float, str]  # begin and end in us, name


# ---- Within the program -----------------------------------------------------------------------


def forwards(model: str) -> Callable[[], float]:
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


def program(part: str, model: str, scratch: Path, busy: bool) -> None:
    """What is watched; prints one JSON object."""
    import torch

    _, _, steps, learning = PARTS[part]
    step = forwards(model)
    for _ in range(learning):
        step()
    found: dict[str, Any] = {"step_ms": [round(step(), 3) for _ in range(steps)]}
    if part == "link":
        found |= profiled(step)
    else:
        found["sampled_step_ms"] = sampled(step, steps, scratch)
    found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    if busy:
        busy_us = sum(event.self_device_time_total for event in device_events(step))
        found["gpu_busy_ms"] = round(busy_us / 1e3, 3)
    print(json.dumps(found))


def sampled(step: Callable[[], float], steps: int, scratch: Path) -> list[float]:
    """Milliseconds of forwards while this thread is sampled."""
    library = ctypes.CDLL(str(scratch / "sampler.so"))
    if library.sampler_start(ctypes.c_long(PERIOD_US)) != 0:
        raise OSError("the system gives no timer for a thread")
    times = [round(step(), 3) for _ in range(steps)]
    if library.sampler_stop(str(scratch / "samples").encode()) != 0:
        raise OSError(f"{scratch / 'samples'} cannot be written")
    return times


def profiled(step: Callable[[], float]) -> dict[str, Any]:
    """What the link and the kernels did in a forward."""
    device_events(step)  # the profiler makes itself ready
    spans = [(e.time_range.start, e.time_range.end, e.name) for e in device_events(step)]
    found = pauses(spans)
    kernels = [span for span in spans if not span[2].startswith("Mem")]
    for name, wanted in (("digests_ms", True), ("kernels_ms", False)):
        own = [end - begin for begin, end, what in kernels if what.startswith(DIGEST) == wanted]
        found[name] = round(sum(own) / 1e3, 3)
    return {"profiled": found}


def pauses(spans: Iterable[Span]) -> dict[str, Any]:
    """What the link did between the first copy and the last, in ms."""
    spans = sorted(spans)
    copies = [span for span in spans if span[2].startswith(COPY)]
    others = [span for span in spans if not span[2].startswith("Mem")]
    if not copies:
        return {"copies": 0}
    busy, until = 0.0, copies[0][0]
    idle: dict[str, list[float]] = {"digest": [], "kernel": [], "nothing": []}
    short, long = 0.0, []
    for begin, end, _ in copies:
        pause = begin - until
        if pause > LONG_US:
            long.append(_meanwhile(until, begin, others))
        if pause > SHORT_US:
            ended = max(
                ((other[1], other[2]) for other in others if until < other[1] <= begin),
                default=(0.0, ""),
            )[1]
            cause = "digest" if ended.startswith(DIGEST) else "kernel" if ended else "nothing"
            idle[cause].append(pause)
        else:
            short += max(0.0, pause)
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return {
        "copies": len(copies),
        "from_first_to_last_ms": round((until - copies[0][0]) / 1e3, 3),
        "busy_ms": round(busy / 1e3, 3),
        "short_pauses_ms": round(short / 1e3, 3),
        "pauses": {
            cause: {"count": len(found), "ms": round(sum(found) / 1e3, 3)}
            for cause, found in idle.items()
        },
        "long": long,
    }


def _meanwhile(begin: float, end: float, kernels: list[Span]) -> dict[str, Any]:
    """A pause, and the kernel that ran for most of it."""
    within = [(min(end, k[1]) - max(begin, k[0]), k) for k in kernels]
    shared, kernel = max(within, default=(0.0, (0.0, 0.0, "")))
    if shared <= 0:
        shared, kernel = 0.0, (0.0, 0.0, "")
    return {
        "ms": round((end - begin) / 1e3, 3),
        "kernel": kernel[2],
        "for_ms": round(shared / 1e3, 3),
        "of_its_ms": round((kernel[1] - kernel[0]) / 1e3, 3),
    }


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


def row(part: str, model: str, scratch: Path, how: str, budget: int | None) -> dict[str, Any]:
    """One run of the program, under a budget or plainly; `error` if it failed."""
    command = [sys.executable, __file__, part, "--model", model, "--within", str(scratch)]
    command += ["--busy"] if part == "launches" and budget is None else []
    found = run([*([] if budget is None else under(budget)), *command], 180)
    if "error" not in found:
        found["median_step_ms"] = round(statistics.median(found["step_ms"]), 3)
        found |= shares(scratch / "samples") if part == "launches" else {}
    return {"how": how, "budget_bytes": budget, **found}


def main() -> int:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--ratios", nargs="+", type=float)
    parser.add_argument("--model", default="gpt2-xl", help="of programs/hf_lm.py")
    parser.add_argument("--within", type=Path, metavar="FOLDER", help="used by itself")
    parser.add_argument("--busy", action="store_true", help="used by itself")
    args = parser.parse_args()
    if args.within is not None:
        program(args.part, args.model, args.within, args.busy)
        return 0
    if args.output is None:
        parser.error("--output is missing")
    title, ratios, _, _ = PARTS[args.part]
    record = Record(args.output, title=f"{title}: forwards", model=args.model)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if args.part == "launches":
            build = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC"]
            source = PROGRAMS / "sampler.c"
            subprocess.run([*build, "-o", str(folder / "sampler.so"), str(source)], check=True)
        record.add(row(args.part, args.model, folder, "plain", None))
        plain = record.rows[0]
        for ratio in (args.ratios or ratios) if "error" not in plain else ():
            budget = int(plain["peak_allocated_bytes"] / ratio)
            found = row(args.part, args.model, folder, f"run-{ratio:g}", budget)
            record.add({"ratio": ratio, **found})
    return 1 if any("error" in each for each in record.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
