# SPDX-License-Identifier: Apache-2.0
"""docs/allocator-benchmarks.md, made by table.py from the results of allocator_suite.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from figures import RESULTS, gib, percent, table

HEAD = """# Benchmarks of the stitching allocator

Written by `python benchmarks/table.py` from the files in `benchmarks/results/allocator/`,
which `benchmarks/allocator_suite.py` makes; every row is a process of its own. *native* and
*expandable* are PyTorch's allocator without and with `expandable_segments:True`, *stitch* is
`penstock.enable()`. *Native again* is the same once more (A/A): what differs there is noise. Losses
of the trainings agree to the fourth digit, not bit for bit, and generated tokens differ: so they do
between the two runs under native.

The card of these runs was a noisy one: two runs of the same allocator differ by up to 23 %
(opt1.3b_full: 1,534 and 1,885 ms under native), so step times within that say nothing here.
"""

MEMORY_NOTE = """*Utilisation* is peak requested bytes over peak reserved bytes, *active* what
blocks take after rounding, until their last use is over; *driver* is the fall of the driver's own
free-memory figure, kernels that were loaded included. *Time* is the sum of the steps after warm-up,
each waited for. *Same* says whether every loss, or every generated token's mean, equals native's
bit for bit.
"""


def usable(runs: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [run for run in runs if key in run and "error" not in run]


def variant(run: dict[str, Any]) -> str:
    return "native again" if run["label"].endswith("again") else str(run["allocator"])


def workload_rows(runs: list[dict[str, Any]]) -> Iterator[list[str]]:
    """One row a run, beside native's of the same workload."""
    natives = {run["workload"]: run for run in runs if variant(run) == "native"}
    shown = ""
    for run in runs:
        memory, native = run["memory"], natives.get(run["workload"])
        ratio = same = ""
        if native is not None and native is not run:
            ratio = f"{run['timed_ms'] / native['timed_ms']:.3f}"
            same = "yes" if run["outcomes"] == native["outcomes"] else "no"
        yield [
            run["title"] if run["title"] != shown else "",
            variant(run),
            gib(memory["peak_requested_bytes"]),
            gib(memory["peak_active_bytes"]),
            gib(memory["peak_reserved_bytes"]),
            percent(memory["utilisation"]),
            gib(run["used_by_driver_bytes"]),
            f"{run['timed_ms']:.0f}",
            ratio,
            same,
        ]
        shown = run["title"]


def workloads(runs: list[dict[str, Any]]) -> list[str]:
    head = ["workload", "allocator", "requested GiB", "active GiB", "reserved GiB", "utilisation"]
    head += ["driver GiB", "time ms", "x native", "same"]
    found = [run for run in usable(runs, "timed_ms") if run["memory"]]
    if not found:
        return []
    return [
        "### Memory and time",
        "",
        *MEMORY_NOTE.split("\n"),
        table(head, workload_rows(found)),
        "",
    ]


def driver_calls(run: dict[str, Any]) -> tuple[int, int]:
    """How often the driver was asked, in all and during the timed steps."""
    calls = [state[2] for state in run["state_after_step"]]
    before = calls[run["timed_from"] - 1] if run["timed_from"] else 0
    return calls[-1], calls[-1] - before


def stitching(runs: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in usable(runs, "timed_ms"):
        counters = run.get("allocator_counters")
        if not counters:
            continue
        total, timed = driver_calls(run)
        names = ("stitches", "stitch_hits", "retries", "stream_waits")
        counts = [f"{counters.get(f'penstock.{name}', 0):,}" for name in names]
        ranges = counters.get("penstock.stitched_range_bytes.peak", 0)
        rows.append([run["title"], *counts, gib(ranges), f"{total:,}", f"{timed:,}"])
    if not rows:
        return []
    head = ["workload", "stitches", "served by an earlier one", "retries", "waits for a stream"]
    head += ["addresses of stitched ranges GiB", "driver calls", "of them in timed steps"]
    return ["### What stitching did", "", table(head, rows), ""]


def batches(runs: list[dict[str, Any]]) -> list[str]:
    found = usable(runs, "find_batch")
    rows = [
        [
            run["title"],
            gib(run["cap_bytes"]),
            str(run["allocator"]),
            str(run["largest_batch"]),
            gib(run["memory"]["peak_reserved_bytes"]) if run["memory"] else "",
            ", ".join(sorted({one["error"] for one in run["tries"] if not one["fits"]})),
        ]
        for run in found
    ]
    if not rows:
        return []
    head = [
        "workload",
        "cap GiB",
        "allocator",
        "largest batch",
        "peak reserved GiB",
        "error beyond",
    ]
    note = """Sequences a quarter as long as above; a batch counts if every length runs, and one
sequence more failed. The search is one process that recovers from each failure."""
    return ["### Largest batch under a cap", "", note, "", table(head, rows), ""]


def calls(runs: list[dict[str, Any]]) -> list[str]:
    found = usable(runs, "calls")
    if not found:
        return []
    names = [str(run["allocator"]) for run in found]
    by_case: dict[tuple[int, int], dict[str, str]] = {}
    for run in found:
        for row in run["rows"]:
            cell = f"{row['ns']:.0f} ({row['again_ns']:.0f})"
            by_case.setdefault((row["bytes"], row["live"]), {})[str(run["allocator"])] = cell
    rows = [
        [f"{size:,}", f"{live:,}", *[cells.get(name, "") for name in names]]
        for (size, live), cells in by_case.items()
    ]
    note = (
        "Nanoseconds of `torch.empty(n)` and its release, Python included, median; measured again "
        "in brackets. The same for one byte of host memory: "
        + ", ".join(f"{run['cpu_ns']:.0f}" for run in found)
        + "."
    )
    head = ["bytes", "other live tensors", *names]
    return ["### Cost of a call", "", note, "", table(head, rows), ""]


def soaks(runs: list[dict[str, Any]]) -> list[str]:
    found = [run for run in runs if "soak" in run and "counts" in run]
    if not found:
        return []
    rows = []
    for run in found:
        counts = run["counts"]
        rows.append(
            [
                str(run["allocator"]),
                f"{run['seconds']:.0f}",
                f"{run['threads']} + 1, {run['streams']} + {run['streams'] // run['threads']}",
                f"{counts.get('verified', 0):,}",
                gib(counts.get("verified_bytes", 0)),
                f"{counts.get('replays', 0):,}",
                f"{counts.get('record_stream', 0):,}",
                f"{counts.get('out_of_memory', 0):,}",
                str(run["mismatches"]),
                "yes" if run["passed"] else "no",
            ]
        )
    head = ["allocator", "s", "threads, streams", "checks", "GiB checked", "graph replays"]
    head += ["record_stream", "out of memory", "mismatches", "passed"]
    note = (
        "Every tensor carries a pattern of its own, checked by the device before it is freed "
        "(benchmarks/allocator_soak.py)."
    )
    return ["### Soak", "", note, "", table(head, rows), ""]


def failures(runs: list[dict[str, Any]]) -> list[str]:
    rows = []
    for run in runs:
        why = run.get("error", run.get("skipped"))
        if why is None and run.get("exit"):
            why = f"exit code {run['exit']} after its result"
        if why is not None:
            rows.append([run["label"], why])
    return ["### Not measured, or failed", "", table(["run", "why"], rows), ""] if rows else []


def section(document: dict[str, Any]) -> str:
    place, runs = document["where"], document["runs"]
    lines = [
        f"## {document['title']}",
        "",
        f"{place['card']}; torch {place['torch']}; {place['date']}; commit {place['commit'][:10]}. "
        f"`{document['command']}`",
        "",
    ]
    for part in (workloads, stitching, batches, calls, soaks, failures):
        lines += part(runs)
    return "\n".join(lines)


def page() -> str:
    files = sorted((RESULTS / "allocator").glob("*.json"))
    return "\n".join([HEAD, *[section(json.loads(path.read_text())) for path in files]])
