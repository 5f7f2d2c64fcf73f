# SPDX-License-Identifier: Apache-2.0
"""The JSON that each verb writes, as `Result`s.

`finetune`, `gpt` and `simulate` give an object, `compare` one with rows that hold results of
`finetune`, `replay` a list. What a verb does not promise to scripts (`penstock.results`) may be
missing. Pure, standard library only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from penstock.errors import FailedError, UsageError
from penstock.results import PROMISED, SCHEMA_VERSION, rows_of
from penstock.units import parse_size

from .fields import Fields
from .result import Curve, Heat, Result, median


def results_of(document: Any, *, name: str, place: str) -> list[Result]:
    """The runs that a document tells of.

    Args:
        document: What the file held.
        name: Of a document that is one run; those of many have names of their own.
        place: What messages call the document.

    Raises:
        FailedError: If it is of no verb, of another version, without what its verb promises, or a
            value in it is not what it should be.
    """
    rows, listed = rows_of(document), isinstance(document, list)
    if not rows:
        raise FailedError(
            f"{place} is JSON, but no result of {_either(list(PROMISED))}",
            remedy="penstock finetune --json FILE, then penstock report FILE",
        )
    allowed = [verb for verb in PROMISED if listed == (verb == "replay")]
    results: list[Result] = []
    for fields in (Fields(row, place) for row in rows):
        verb = _verb_of(fields, allowed)
        results += _compare(fields) if verb == "compare" else [_READERS[verb](fields, name)]
    if not results:
        raise FailedError(f"{place} holds no result", remedy="a comparison of one setting or more")
    return results


def _verb_of(fields: Fields, allowed: list[str]) -> str:
    """Who wrote a document, which has all that this verb promises."""
    version = fields.count("schema_version")
    if version != SCHEMA_VERSION:
        raise FailedError(
            f"{fields.place} has schema_version {version}; this Penstock reads {SCHEMA_VERSION}",
            remedy="the Penstock that wrote it",
        )
    if "verb" not in fields:
        raise FailedError(
            f"{fields.place} names no verb: an earlier Penstock wrote it",
            remedy=f'run it again, or add "verb" to it: {_either(allowed)}',
        )
    verb = fields.text("verb")
    if verb not in allowed:
        raise fields.wrong("verb", verb, _either(allowed))
    fields.need(PROMISED[verb])
    return verb


def _either(verbs: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(verbs[:-1]), verbs[-1])))


def _figures(fields: Fields) -> dict[str, Any]:
    """Those that mean the same under every verb that writes them."""
    sizes = ("requested", "active", "reserved", "device")
    numbers = "tokens_per_second ideal_ms ratio_to_ideal utilisation link_gb_per_s".split()
    return {f"peak_{kind}_bytes": fields.count(f"peak_{kind}_bytes") for kind in sizes} | {
        key: fields.number(key) for key in numbers
    }


def _finetune(fields: Fields, name: str) -> Result:
    timed_from = fields.count("timed_from", 0) or 0
    gpus = fields.count("gpus", 1)
    setting = _parts(
        fields.text("model"),
        f"strategy {fields.text('strategy')}",
        _tokens(fields),
        fields.text("dtype", ""),
        f"{gpus} x {fields.text('device_name', 'GPU')}",
        fields.text("engine", "") if gpus != 1 else "",
        fields.text("allocator"),
        fields.text("memory", ""),
        *_versions(fields),
    )
    result = Result(
        name=name,
        verb="finetune",
        setting=setting,
        emulated=fields.text("memory_figures", "") == "replayed",
        gpu_memory_bytes=fields.count("budget_bytes") or _size(fields.text("gpu_memory", "auto")),
        step_ms=fields.numbers("step_ms")[timed_from:],
        first_step=timed_from + 1,
        **_figures(fields),
        loss=fields.numbers("loss", least=-math.inf),
        memory_over_time=_curve(fields.within("memory_over_time")),
    )
    if fields.text("memory", "") != "paged":
        return result
    into, out = (fields.numbers(key)[timed_from:] for key in ("bytes_in", "bytes_out"))
    return replace(result, bytes_in=median(into), bytes_out=median(out))


def _compare(fields: Fields) -> list[Result]:
    results = []
    for number, row in enumerate(fields.sequence("rows")):
        setting = fields.item(row, f"rows[{number}]")
        label = setting.text("name")
        if "result" in setting:
            run = setting.within("result")
            _verb_of(run, ["finetune"])
            found = replace(_finetune(run, label), verb="compare")
            results.append(replace(found, loss_difference=setting.number("loss_difference")))
            continue
        failure = f"exit {setting.count('exit_code', 1)}"
        error = setting.text("error", "failed")
        results.append(Result(label, "compare", failure=failure, error=error))
    return results


def _gpt(fields: Fields, name: str) -> Result:
    counted = fields.flag("bytes_counted", default=True)
    layers = fields.text("fusion", "baseline")
    setting = _parts(
        fields.text("model"),
        _tokens(fields),
        fields.text("dtype", ""),
        fields.text("device_name", fields.text("device")),
        fields.text("memory"),
        "" if layers == "baseline" else layers,
        "compiled" if fields.flag("compile") else "",
        "CUDA graph" if fields.flag("cuda_graph") else "",
        *_versions(fields),
    )
    result = Result(
        name=name,
        verb="gpt",
        setting=setting,
        emulated=fields.text("device") == "emulated",
        gpu_memory_bytes=fields.count("gpu_memory_bytes"),
        step_ms=fields.numbers("step_ms"),
        **_figures(fields),
        compute_ms=fields.number("compute_ms"),
        memory_over_time=_held(fields),
    )
    if not counted:
        return result
    into, out = median(fields.numbers("bytes_in")), median(fields.numbers("bytes_out"))
    rate = (result.link_gb_per_s or math.inf) * 1e6
    busy = {"compute": result.compute_ms or 0, "in": (into or 0) / rate, "out": (out or 0) / rate}
    lanes = {} if result.emulated else {lane: [(0.0, ms)] for lane, ms in busy.items() if ms}
    hits = fields.number("hit_ratio")
    return replace(result, bytes_in=into, bytes_out=out, lanes=lanes, hit_ratio=hits)


def _replay(fields: Fields, name: str) -> Result:
    trace, allocator = fields.text("trace"), fields.text("allocator")
    return Result(
        name=f"{PurePath(trace).name}, {allocator}",
        verb="replay",
        setting=(trace, allocator),
        **_figures(fields),
        **_failure(fields, "event"),
        driver_ms=fields.number("modelled_driver_ms"),
    )


def _simulate(fields: Fields, name: str) -> Result:
    steps = fields.numbers("step_ms")
    first = max(0, len(steps) - (fields.count("steady_steps", len(steps)) or 0))
    link, policy = fields.number("link_gb_per_s"), fields.text("policy")
    return Result(
        name=name,
        verb="simulate",
        setting=_parts(fields.text("trace"), f"{link:g} GB/s" if link else "", policy),
        **_failure(fields, "piece"),
        gpu_memory_bytes=fields.count("gpu_memory_bytes"),
        step_ms=steps[first:],
        first_step=first + 1,
        **_figures(fields) | {"peak_requested_bytes": fields.count("peak_bytes")},
        hit_ratio=fields.number("hit_ratio"),
        bytes_in=fields.number("bytes_in"),
        bytes_out=fields.number("bytes_out"),
        memory_over_time=_curve(fields.within("memory_over_time")),
        compute_ms=median(fields.numbers("recorded_step_ms")[first:]),
        lanes=_lanes(fields.within("lanes")),
        heat=_heat(fields.within("heat")),
    )


_READERS = {"finetune": _finetune, "gpt": _gpt, "replay": _replay, "simulate": _simulate}


def _failure(fields: Fields, unit: str) -> dict[str, Any]:
    at = fields.count(f"out_of_memory_at_{unit}")
    error = f"out of memory at {unit} {at}"
    return {} if at is None else {"failure": "out of memory", "error": error}


def _tokens(fields: Fields) -> str:
    batch, length = fields.count("batch"), fields.count("seq_len")
    if length is None:
        return "one token a step" if batch == 1 else ""
    return f"{batch or 1} x {length:,} tokens a step"


def _versions(fields: Fields) -> list[str]:
    names = (("torch", "torch"), ("penstock", "version"))
    return [f"{name} {fields.text(key)}" for name, key in names if key in fields]


def _parts(*parts: str) -> list[str]:
    return [part for part in parts if part]


def _size(text: str) -> int | None:
    """A budget as it was asked for; None for none, and for a share of what nobody knows here."""
    try:
        return parse_size(text)
    except UsageError:
        return None


def _curve(fields: Fields) -> Curve | None:
    """A curve; what was asked for is what was held where nothing else is said."""
    held = "reserved" if "reserved" in fields else "requested"
    keys = ["ms", "requested", held, *(["weights"] if "weights" in fields else [])]
    points = zip(*(fields.numbers(key) for key in keys), strict=False)
    found = [[float(value or 0) for value in point] for point in points if None not in point]
    return Curve(*map(list, zip(*found, strict=True))) if found else None


def _held(fields: Fields) -> Curve | None:
    """What a run held from its begin to its end, where its counters are all that is known."""
    weights = fields.within("counters").number("device_bytes")
    peak = fields.number("peak_device_bytes")
    if weights is None or peak is None:
        return None
    peak = max(peak, weights)
    ms = sum(value or 0 for value in fields.numbers("step_ms"))
    return Curve([0.0, ms], [peak, peak], [peak, peak], [weights, weights])


def _lanes(fields: Fields) -> dict[str, list[tuple[float, float]]]:
    lanes = ("compute", "in", "out")
    ends = {lane: [float(at or 0) for at in fields.numbers(lane)] for lane in lanes}
    return {lane: list(zip(each[::2], each[1::2], strict=False)) for lane, each in ends.items()}


def _heat(fields: Fields) -> Heat | None:
    count, values = fields.count("columns", 1) or 1, fields.numbers("touches")
    rows = [values[at : at + count] for at in range(0, len(values), count)]
    touches = [[value or 0 for value in row] for row in rows if len(row) == count]
    if not touches:
        return None
    return Heat(fields.number("ms") or 1.0, fields.number("bytes") or 1.0, touches)
