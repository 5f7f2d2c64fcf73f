# SPDX-License-Identifier: Apache-2.0
"""Results as a timeline in the Trace Event Format, which Perfetto and chrome://tracing open.

Each result is a process of the timeline: a lane with its steps, one after the other, a lane with
the shortest that each could take, and memory over time as a counter, which begins with the first
step of all. Pure but for `is_timeline`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import FailedError

from .fields import load
from .result import Result

# By this a timeline of ours is known.
GENERATOR = "penstock"
_STEPS, _IDEAL = 1, 2
_US = 1e3  # of a millisecond: the format counts in microseconds


def timeline(results: Sequence[Result]) -> str:
    """The whole file.

    Args:
        results: In the order of their processes.
    """
    events = [
        event
        for number, result in enumerate(results, 1)
        if result.failure is None
        for event in _process(number, result)
    ]
    document = {"otherData": {"generator": GENERATOR}, "displayTimeUnit": "ms"}
    return json.dumps({**document, "traceEvents": events}) + "\n"


def is_timeline(path: Path) -> bool:
    """Whether `timeline` made a file."""
    try:
        document = load(path)
    except FailedError:
        return False
    other = document.get("otherData") if isinstance(document, dict) else None
    return isinstance(other, dict) and other.get("generator") == GENERATOR


def _process(number: int, result: Result) -> Iterator[dict[str, Any]]:
    yield _named("process_name", number, 0, result.name)
    yield _named("thread_name", number, _STEPS, f"steps, from number {result.first_step} on")
    if result.ideal_ms is not None:
        yield _named("thread_name", number, _IDEAL, "the ideal")
    moved = {"bytes_in": result.bytes_in, "bytes_out": result.bytes_out}
    shown = {key: value for key, value in moved.items() if value is not None}
    begins = 0.0
    for step, ms in enumerate(result.step_ms, result.first_step):
        if ms is None:
            continue
        yield _slice(number, _STEPS, f"step {step}", begins, ms, shown)
        if result.ideal_ms is not None:
            yield _slice(number, _IDEAL, "ideal", begins, min(ms, result.ideal_ms), {})
        begins += ms
    curve = result.memory_over_time
    if curve is None:
        return
    for ms, requested, reserved in zip(curve.ms, curve.requested, curve.reserved, strict=True):
        sizes = {"requested": requested, "reserved": reserved}
        yield {"ph": "C", "name": "memory", "pid": number, "ts": ms * _US, "args": sizes}


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(
    process: int, thread: int, name: str, begins: float, ms: float, arguments: dict[str, float]
) -> dict[str, Any]:
    return {
        **{"ph": "X", "name": name, "cat": "step", "pid": process, "tid": thread},
        **{"ts": begins * _US, "dur": ms * _US, "args": arguments},
    }
