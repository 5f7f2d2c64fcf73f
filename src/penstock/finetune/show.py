# SPDX-License-Identifier: Apache-2.0
"""The result of ``penstock finetune`` as a short text.

Works from the JSON document alone, so that a saved result prints the same. Pure but for stdout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.bound import told
from penstock.runner.figures import spread, steps_counted, steps_told
from penstock.units import format_bytes, format_number

REPLAYED = (
    "Without a GPU: memory is that of the recorded allocations, replayed on the allocator; times "
    "say nothing."
)
OFFLOADED = "What FSDP2 and DeepSpeed offload counts too: host and device are one memory there."


def print_result(result: Mapping[str, Any]) -> None:
    """Print a result for people."""
    for line in lines(result):
        print(line)


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the text."""
    where = result["device_name"]
    gpus = f"{result['gpus']} x {where}, {result['engine']}" if result["gpus"] > 1 else where
    work = f"{result['batch']} x {result['seq_len']:,} tokens a step"
    yield f"{result['model']}, {result['strategy']}, {work}, {result['allocator']} on {gpus}"
    yield ""
    for name, value in _rows(result):
        yield f"{name:<17}{value}"
    if result["memory_figures"] == "replayed":
        yield ""
        yield REPLAYED
        if "O" in result["strategy"] and result["engine"] != "single":
            yield OFFLOADED


def _rows(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    trained, every = result["trained_parameters"], result["parameters"]
    share = "all" if trained == every else f"{trained / every:.2%}"
    yield "parameters", f"{every:,}, {share} trained"
    losses = result["loss"]
    yield "loss", f"{losses[0]:.4f} to {losses[-1]:.4f} in {steps_counted(len(losses))}"
    for evaluation in result["evaluations"][-1:]:
        yield "evaluation", f"{evaluation['loss']:.4f} after step {evaluation['step']}"
    timed = result["step_ms"][result["timed_from"] :]
    if timed:
        yield "step", steps_told(timed)
        yield "tokens a second", format_number(result["tokens_per_second"])
    if result["memory"] == "paged":
        yield from _paging(result)
    yield "requested", f"{format_bytes(result['peak_requested_bytes'])} at the peak"
    yield "active", format_bytes(result["peak_active_bytes"])
    reserved = format_bytes(result["peak_reserved_bytes"])
    yield "reserved", f"{reserved}, utilisation {result['utilisation']:.1%}"


def _paging(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    counters = result["counters"]
    paged = counters["weight_bytes"] + counters["state_bytes"]
    budget = f"{format_bytes(result['budget_bytes'])} for everything"
    # State that fits stays torch's own, and is not counted.
    what = "weights and optimizer state" if counters["state_bytes"] else "weights"
    yield "budget", f"{budget}; {what} are {format_bytes(paged)}"
    into, out = (result[name][result["timed_from"] :] for name in ("bytes_in", "bytes_out"))
    if into:
        moved = (format_bytes(spread(into)[1]), format_bytes(spread(out)[1]))
        yield "moved a step", f"{moved[0]} in, {moved[1]} out"
    if result["ratio_to_ideal"] is not None:
        ideal = format_number(result["ideal_ms"])
        yield "step to ideal", told(result["ratio_to_ideal"], ideal)
