# SPDX-License-Identifier: Apache-2.0
"""The result of ``penstock gpt`` as a short text: what ran, how fast, what moved, and why.

Works from the JSON document alone, so that a saved result prints the same. Pure but for stdout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.bound import told
from penstock.units import format_bytes, format_number

from .figures import spread, steps_told

EMULATED = "The emulated GPU shows that the run is correct; its times say nothing about a GPU."


def print_run(result: Mapping[str, Any]) -> None:
    """Print a result for people."""
    for line in lines(result):
        print(line)


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the text."""
    if result["text"] is not None:
        yield ""  # the continuation stands above
    where = result["device_name"]
    yield f"{result['model']}, {_work(result)}, {result['dtype']}, {result['memory']} on {where}"
    layers = result.get("fusion", "baseline") + (", compiled" if result.get("compile") else "")
    layers += ", a step as one CUDA graph" if result.get("cuda_graph") else ""
    if layers != "baseline":
        yield f"layers: {layers}"
    yield ""
    for name, value in _rows(result):
        yield f"{name:<17}{value}"
    yield ""
    yield result["explain"]
    if result["device"] == "emulated":
        yield EMULATED


def _work(result: Mapping[str, Any]) -> str:
    if result["seq_len"] is None:
        return "one token a step"
    return f"{result['batch']} x {result['seq_len']:,} tokens a step"


def _rows(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    weights, budget = result["weight_bytes"], result["gpu_memory_bytes"]
    yield "weights", f"{format_bytes(weights)}, {result['weights']}"
    if budget is None:
        yield "budget", "none: everything is resident"
    elif budget < weights:
        yield "budget", f"{format_bytes(budget)}, {budget / weights:.0%} of the weights"
    else:
        yield "budget", f"{format_bytes(budget)}, more than the weights"
    yield "step", steps_told(result["step_ms"])
    yield "tokens a second", format_number(result["tokens_per_second"])
    text = result["text"]
    if text is not None and result["seq_len"] is not None:
        yield "text", f"{text['tokens']} tokens, {steps_told(text['token_ms'])}"
    if result["bytes_counted"]:
        into, out = _median(result["bytes_in"]), _median(result["bytes_out"])
        yield "moved a step", f"{format_bytes(into)} in, {format_bytes(out)} out"
        yield "hit ratio", f"{result['hit_ratio']:.3f}"
    if result["ratio_to_ideal"] is not None:
        ideal = format_number(result["ideal_ms"])
        yield "step to ideal", told(result["ratio_to_ideal"], ideal)
    if result["peak_device_bytes"] is not None:
        yield "peak", f"{format_bytes(result['peak_device_bytes'])} of device memory"
    if result["check"] is not None:
        yield "check", _check(result["check"])


def _median(values: Sequence[float]) -> float:
    return spread(values)[1]


def _check(check: Mapping[str, Any]) -> str:
    if check["equal"] and check.get("tolerance"):
        share = f"{check['max_relative_rms']:.2g}, {check['tolerance']:g} allowed"
        return (
            f"ok: {check['outputs']} outputs are the resident baseline's but for rounding: {share}"
        )
    if check["equal"]:
        return f"ok: {check['outputs']} outputs equal the resident baseline's, bit for bit"
    return f"failed: {check['different']} of {check['outputs']} outputs differ"
