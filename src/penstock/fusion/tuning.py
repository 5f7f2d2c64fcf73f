# SPDX-License-Identifier: Apache-2.0
"""Which of several ways to do the same thing is fastest here: measured once, kept on disk.

Invariant: nothing is measured outside `measuring()`. Measuring launches work many times; beside a
model that is being paged it would disturb the pager and be wrong, so whoever wants measured
choices asks for them before, and elsewhere what is not known yet takes the plain way. A choice is
keyed by the GPU, the versions of torch and triton, dtype and shape; an entry for other ones, or
from before choices were made as they are now (`VERSION`), is never used. A way that fails to run,
or whose result is not that of the first, is never chosen.

The file is replaced whole, so that processes may share it; what cannot be read is measured anew.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import FailedError
from penstock.files import write_whole

from .captured import record

log = logging.getLogger("penstock.fusion")

Key = tuple[Any, ...]
Way = Callable[[], Any]

# A way is run for about this long; fewer, and the clock of a cold GPU decides.
MEASURE_MS = 8.0
# The host is well ahead of calls that take this long; shorter ones are timed as CUDA graphs.
LONG_MS = 1.0
GRAPH_CALLS, MOST_REPLAYS = 20, 20
REPEATS = 3
# Roundings differ between ways: relative, of the root mean square.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
# A second way has to be faster by more than two runs of one way differ.
MARGIN = 0.98
# Of the way choices are made: an older one means something else. 2: auto by chains of layers;
# 3: with gradients that are some, and a margin by the number of candidates; 4: products by the
# time of the GPU alone; 5: auto by contests of two, and a slow host for its share of the time.
VERSION = 5

_known: dict[str, dict[str, str]] = {}
_changes = 0
_active = False


def folder() -> Path:
    """Where choices are kept: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "penstock" / "fusion"


def place(device: torch.device) -> str:
    """What a choice depends on beside the work: GPU, torch, triton, `VERSION`; a file name."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "none"
    text = f"{gpu}-torch-{torch.__version__}-triton-{triton}-choices-{VERSION}"
    return "".join(letter if letter.isalnum() or letter in ".-+" else "_" for letter in text)


def _choices(device: torch.device) -> dict[str, str]:
    name = place(device)
    if name not in _known:
        found: dict[str, str] = {}
        try:
            read = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
            found = {str(key): str(value) for key, value in read.items()}
        except (OSError, ValueError, AttributeError):
            pass
        _known[name] = found
    return _known[name]


def known(key: Key, device: torch.device) -> str | None:
    """What was chosen for `key`, or None."""
    return _choices(device).get(json.dumps(key))


def changes() -> int:
    """A number that changes with what is known, for whoever keeps an answer of `known`."""
    return _changes


def forget() -> None:
    """Drop what this process has read; the file stays."""
    global _changes
    _changes += 1
    _known.clear()


def active() -> bool:
    """Whether this is inside `measuring()`."""
    return _active


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Within it, the fused ops measure what is not known yet for the shapes that they meet."""
    global _active, _changes
    before, _active = _active, True
    _changes += 1  # what was not known is to be measured now
    try:
        yield
    finally:
        _active = before


def choose(key: Key, device: torch.device, ways: Mapping[str, Way]) -> str:
    """Measure the ways and keep the fastest.

    Args:
        key: What the choice holds for, beside the GPU and the versions.
        device: Where the ways run.
        ways: By name; the first gives the result that the others must give, and wins ties.

    Returns:
        The name of the way chosen.
    """
    first = next(iter(ways))
    times: dict[str, float] = {}
    for name in sound(key, ways):
        try:
            times[name] = measure(ways[name])
        except Exception as error:  # it runs, but cannot be captured
            log.info("fusion %s: %s cannot be timed: %s", key, name, error)
    best = min(times, key=lambda name: times[name])
    if times[best] > MARGIN * times[first]:
        best = first
    log.info("fusion %s: %s of %s", key, best, {k: round(v, 4) for k, v in times.items()})
    remember(key, device, best)
    return best


def sound(key: Key, ways: Mapping[str, Way]) -> list[str]:
    """The names of the ways that run and give the first one's result, the first among them.

    Args:
        key: What they are called in the log.
        ways: By name; a way that returns no tensor only has to run.
    """
    first = next(iter(ways))
    wanted = _result(ways[first]())
    good = [first]
    for name, way in ways.items():
        if name == first:
            continue
        try:
            same = _same(_result(way()), wanted)
        except Exception as error:  # a kernel that does not fit this GPU
            log.info("fusion %s: %s does not run: %s", key, name, error)
            continue
        if same:
            good.append(name)
        else:
            log.warning("fusion %s: %s gives another result, left out", key, name)
    return good


def remember(key: Key, device: torch.device, name: str) -> None:
    """Keep a choice, in this process and on disk."""
    global _changes
    _changes += 1
    choices = _choices(device)
    choices[json.dumps(key)] = name
    path = folder() / f"{place(device)}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole("choices", str(path), json.dumps(choices, indent=1, sort_keys=True))
    except (OSError, FailedError) as error:  # without a cache it takes time, nothing else
        log.warning("fusion: %s cannot be written: %s", path, error)


def measure(way: Way) -> float:
    """Milliseconds that one call takes the GPU, the least of a few rounds.

    Short calls are recorded as a CUDA graph. One after the other from the host they once had a slow
    spell of it decide: tiles were chosen for 1.5B at batch 1 with which ffn_layernorm, in a graph,
    took 1.11 times the baseline's time, where it takes 0.97 (H200).
    """
    way()
    once = max(min(back_to_back(way, 1) for _ in range(2)), 1e-3)
    if once < LONG_MS:
        return _measure_captured(way, once)
    calls = max(2, int(MEASURE_MS / once))
    return min(back_to_back(way, calls) for _ in range(REPEATS))


def back_to_back(way: Way, calls: int) -> float:
    """Milliseconds of one call of several that follow each other, by the GPU's clock."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        way()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / calls


def _measure_captured(way: Way, once: float) -> float:
    def calls() -> None:
        for _ in range(GRAPH_CALLS):
            way()

    graph, _ = record(calls)
    graph.replay()
    replays = max(1, min(MOST_REPLAYS, round(MEASURE_MS / (GRAPH_CALLS * once))))
    return min(back_to_back(graph.replay, replays) for _ in range(REPEATS)) / GRAPH_CALLS


def _result(value: Any) -> Tensor | None:
    if isinstance(value, (tuple, list)):
        value = value[0] if value else None
    return value if isinstance(value, Tensor) else None


def _same(got: Tensor | None, wanted: Tensor | None) -> bool:
    if got is None or wanted is None:
        return True
    distance = (got.float() - wanted.float()).square().mean().sqrt()
    size = wanted.float().square().mean().sqrt()
    share = TOLERANCE.get(wanted.dtype, 1e-6)
    if wanted.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        share = TOLERANCE[torch.float16]  # as many bits
    return bool(distance <= share * size + 1e-12)
