# SPDX-License-Identifier: Apache-2.0
"""The JSON that each verb writes, as `Result`s.

A document is known by keys that the verb promises to scripts (docs/reference/cli.md): `finetune`,
`gpt` and `simulate` give an object, `compare` one with rows that hold results of `finetune`,
`replay` a list. What else is in a document may be missing. Pure, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from penstock.errors import FailedError, UsageError
from penstock.units import parse_size

from .fields import Fields
from .result import Curve, Heat, Result, median

SCHEMA_VERSION = 1
VERBS = ("finetune", "compare", "gpt", "replay", "simulate")


def results_of(document: Any, *, name: str, place: str) -> list[Result]:
    """The runs that a document tells of.

    Args:
        document: What the file held.
        name: Of a document that is one run; those of many have names of their own.
        place: What messages call the document.

    Raises:
        FailedError: If it is of no verb, of another version, or a value in it is not what it
            should be.
    """
    rows = document if isinstance(document, list) else [document]
    if not rows:
        raise _unknown(place)
    results: list[Result] = []
    for row in rows:
        verb = verb_of(row, listed=isinstance(document, list))
        if verb is None:
            raise _unknown(place)
        fields = Fields(row, place)
        _check_version(fields)
        results += _READERS[verb](fields, name)
    if not results:
        raise FailedError(f"{place} holds no result", remedy="a comparison of one setting or more")
    return results


def verb_of(document: Any, *, listed: bool = False) -> str | None:
    """Which verb wrote a document, or a row of a list of `replay`; None for none of them."""
    if not isinstance(document, dict):
        return None
    for verb, keys in _SIGNATURES.items():
        if keys <= document.keys() and listed == (verb == "replay"):
            return verb
    return None


# Keys that no other verb writes together.
_SIGNATURES: dict[str, set[str]] = {
    "finetune": {"model", "strategy", "allocator", "loss", "step_ms", "peak_reserved_bytes"},
    "compare": {"schema_version", "work", "rows"},
    "gpt": {"model", "device", "memory", "gpu_memory_bytes", "step_ms", "output_sha256"},
    "replay": {"trace", "allocator", "events", "peak_reserved_bytes"},
    "simulate": {"trace", "policy", "gpu_memory_bytes", "step_ms"},
}


def _unknown(place: str) -> FailedError:
    return FailedError(
        f"{place} is JSON, but no result of {', '.join(VERBS[:-1])} or {VERBS[-1]}",
        remedy="penstock finetune --json FILE, then penstock report FILE",
    )


def _check_version(fields: Fields) -> None:
    version = fields.count("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise FailedError(
            f"{fields.place} has schema_version {version}; this Penstock reads {SCHEMA_VERSION}",
            remedy="the Penstock that wrote it",
        )


def _figures(fields: Fields) -> dict[str, Any]:
    """Those that mean the same under every verb that writes them."""
    sizes = ("requested", "active", "reserved", "device")
    numbers = "tokens_per_second ideal_ms ratio_to_ideal utilisation link_gb_per_s".split()
    return {f"peak_{kind}_bytes": fields.count(f"peak_{kind}_bytes") for kind in sizes} | {
        key: fields.number(key) for key in numbers
    }


def _finetune(fields: Fields, name: str) -> list[Result]:
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
        return [result]
    into, out = (fields.numbers(key)[timed_from:] for key in ("bytes_in", "bytes_out"))
    return [replace(result, bytes_in=median(into), bytes_out=median(out))]


def _compare(fields: Fields, name: str) -> list[Result]:
    results = []
    for number, row in enumerate(fields.sequence("rows")):
        setting = fields.item(row, f"rows[{number}]")
        label = setting.text("name")
        if "result" in setting:
            [result] = _finetune(setting.within("result"), label)
            difference = setting.number("loss_difference")
            results.append(replace(result, verb="compare", loss_difference=difference))
            continue
        failure = f"exit {setting.count('exit_code', 1)}"
        error = setting.text("error", "failed")
        results.append(Result(label, "compare", failure=failure, error=error))
    return results


def _gpt(fields: Fields, name: str) -> list[Result]:
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
        return [result]
    into, out = median(fields.numbers("bytes_in")), median(fields.numbers("bytes_out"))
    rate = (result.link_gb_per_s or math.inf) * 1e6
    busy = {"compute": result.compute_ms or 0, "in": (into or 0) / rate, "out": (out or 0) / rate}
    lanes = {} if result.emulated else {lane: [(0.0, ms)] for lane, ms in busy.items() if ms}
    result = replace(result, bytes_in=into, bytes_out=out, lanes=lanes)
    return [replace(result, hit_ratio=fields.number("hit_ratio"))]


def _replay(fields: Fields, name: str) -> list[Result]:
    trace, allocator = fields.text("trace"), fields.text("allocator")
    event = fields.count("out_of_memory_at_event")
    failed = event is not None
    return [
        Result(
            name=f"{PurePath(trace).name}, {allocator}",
            verb="replay",
            setting=(trace, allocator),
            failure="out of memory" if failed else None,
            error=f"out of memory at event {event}" if failed else None,
            **_figures(fields),
            driver_ms=fields.number("modelled_driver_ms"),
        )
    ]


def _simulate(fields: Fields, name: str) -> list[Result]:
    steps = fields.numbers("step_ms")
    first = max(0, len(steps) - (fields.count("steady_steps", len(steps)) or 0))
    piece = fields.count("out_of_memory_at_piece")
    failed = piece is not None
    link = fields.number("link_gb_per_s")
    return [
        Result(
            name=name,
            verb="simulate",
            setting=_parts(
                fields.text("trace"), f"{link:g} GB/s" if link else "", fields.text("policy")
            ),
            failure="out of memory" if failed else None,
            error=f"out of memory at piece {piece}" if failed else None,
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
    ]


_READERS: Mapping[str, Callable[[Fields, str], list[Result]]] = {
    "finetune": _finetune,
    "compare": _compare,
    "gpt": _gpt,
    "replay": _replay,
    "simulate": _simulate,
}


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
    ends = {lane: fields.numbers(lane) for lane in ("compute", "in", "out")}
    return {
        lane: [
            (float(begin or 0), float(end or 0))
            for begin, end in zip(each[::2], each[1::2], strict=False)
        ]
        for lane, each in ends.items()
    }


def _heat(fields: Fields) -> Heat | None:
    if "touches" not in fields:
        return None
    count, values = fields.count("columns", 1) or 1, fields.numbers("touches")
    rows = [values[at : at + count] for at in range(0, len(values), count)]
    touches = [[value or 0 for value in row] for row in rows if len(row) == count]
    return (
        Heat(fields.number("ms") or 1.0, fields.number("bytes") or 1.0, touches)
        if touches
        else None
    )
