# SPDX-License-Identifier: Apache-2.0
"""docs/allocator-benchmarks.md, made by table.py from the results of allocator_suite.py."""

from __future__ import annotations

from typing import Any

from pages.figures import made, results, shown

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


def part(title: str, rows: list[dict[str, Any]], head: str, cells: str, note: str = "") -> str:
    """A table under its title, or nothing where it has no rows."""
    note = f"{note}\n" if note else ""
    return f"### {title}\n\n{note}{shown(head, cells, rows)}\n\n" if rows else ""


def variant(run: dict[str, Any]) -> str:
    return "native again" if run["label"].endswith("again") else str(run["allocator"])


def workloads(runs: list[dict[str, Any]]) -> str:
    """One row a run, beside native's of the same workload."""
    found = [run for run in usable(runs, "timed_ms") if run["memory"]]
    natives = {run["workload"]: run for run in found if variant(run) == "native"}
    rows, shown_last = [], ""
    for run in found:
        row = {**run, "title": run["title"] if run["title"] != shown_last else ""}
        native = natives.get(run["workload"], run)
        if native is not run:
            row["x"] = run["timed_ms"] / native["timed_ms"]
            row["same"] = run["outcomes"] == native["outcomes"]
        rows.append({**row, "variant": variant(run)})
        shown_last = run["title"]
    return part(
        "Memory and time",
        rows,
        "workload | allocator | requested GiB | active GiB | reserved GiB | utilisation | "
        "driver GiB | time ms | x native | same",
        "{title} | {variant} | {memory[peak_requested_bytes]:GiB} | "
        "{memory[peak_active_bytes]:GiB} | {memory[peak_reserved_bytes]:GiB} | "
        "{memory[utilisation]:%} | {used_by_driver_bytes:GiB} | {timed_ms:.0f} | {x:.3f} | "
        "{same:yes}",
        MEMORY_NOTE,
    )


def driver_calls(run: dict[str, Any]) -> tuple[int, int]:
    """How often the driver was asked, in all and during the timed steps."""
    calls = [state[2] for state in run["state_after_step"]]
    before = calls[run["timed_from"] - 1] if run["timed_from"] else 0
    return calls[-1], calls[-1] - before


def stitching(runs: list[dict[str, Any]]) -> str:
    rows = []
    for run in usable(runs, "timed_ms"):
        if counters := run.get("allocator_counters"):
            counts = {name.removeprefix("penstock."): count for name, count in counters.items()}
            kept = dict.fromkeys(("stitches", "stitch_hits", "retries", "stream_waits"), 0)
            ranges = counts.get("stitched_range_bytes.peak", 0)
            total, timed = driver_calls(run)
            more = {"title": run["title"], "ranges": ranges, "total": total, "timed": timed}
            rows.append({**kept, **counts, **more})
    return part(
        "What stitching did",
        rows,
        "workload | stitches | served by an earlier one | retries | waits for a stream | "
        "addresses of stitched ranges GiB | driver calls | of them in timed steps",
        "{title} | {stitches:,} | {stitch_hits:,} | {retries:,} | {stream_waits:,} | "
        "{ranges:GiB} | {total:,} | {timed:,}",
    )


def batches(runs: list[dict[str, Any]]) -> str:
    rows = [
        {**run, "errors": ", ".join(sorted({o["error"] for o in run["tries"] if not o["fits"]}))}
        for run in usable(runs, "find_batch")
    ]
    return part(
        "Largest batch under a cap",
        rows,
        "workload | cap GiB | allocator | largest batch | peak reserved GiB | error beyond",
        "{title} | {cap_bytes:GiB} | {allocator} | {largest_batch} | "
        "{memory[peak_reserved_bytes]:GiB} | {errors}",
        """Sequences a quarter as long as above; a batch counts if every length runs, and one
sequence more failed. The search is one process that recovers from each failure.
""",
    )


def calls(runs: list[dict[str, Any]]) -> str:
    found = usable(runs, "calls")
    by_case: dict[tuple[int, int], dict[str, Any]] = {}
    for run in found:
        for row in run["rows"]:
            case = by_case.setdefault((row["bytes"], row["live"]), dict(row))
            case[run["allocator"]] = f"{row['ns']:.0f} ({row['again_ns']:.0f})"
    names = [run["allocator"] for run in found]
    host = ", ".join(f"{run['cpu_ns']:.0f}" for run in found)
    return part(
        "Cost of a call",
        list(by_case.values()),
        " | ".join(["bytes | other live tensors", *names]),
        " | ".join(["{bytes:,} | {live:,}", *(f"{{{name}}}" for name in names)]),
        "Nanoseconds of `torch.empty(n)` and its release, Python included, median; measured again "
        f"in brackets. The same for one byte of host memory: {host}.\n",
    )


def soaks(runs: list[dict[str, Any]]) -> str:
    counted = ("verified", "verified_bytes", "replays", "record_stream", "out_of_memory")
    rows = [
        {
            **{**run, "counts": {**dict.fromkeys(counted, 0), **run["counts"]}},
            "streams_each": run["streams"] // run["threads"],
        }
        for run in runs
        if "soak" in run and "counts" in run
    ]
    return part(
        "Soak",
        rows,
        "allocator | s | threads, streams | checks | GiB checked | graph replays | record_stream "
        "| out of memory | mismatches | passed",
        "{allocator} | {seconds:.0f} | {threads} + 1, {streams} + {streams_each} | "
        "{counts[verified]:,} | {counts[verified_bytes]:GiB} | {counts[replays]:,} | "
        "{counts[record_stream]:,} | {counts[out_of_memory]:,} | {mismatches} | {passed:yes}",
        "Every tensor carries a pattern of its own, checked by the device before it is freed "
        "(benchmarks/allocator_soak.py).\n",
    )


def failures(runs: list[dict[str, Any]]) -> str:
    rows = []
    for run in runs:
        why = run.get("error", run.get("skipped"))
        if why is None and run.get("exit"):
            why = f"exit code {run['exit']} after its result"
        if why is not None:
            rows.append({"run": run["label"], "why": why})
    return part("Not measured, or failed", rows, "run | why", "{run} | {why}")


def section(document: dict[str, Any]) -> str:
    parts = (workloads, stitching, batches, calls, soaks, failures)
    head = f"## {document['title']}\n\n{made(document)}. `{document['command']}`\n\n"
    return (head + "".join(each(document["runs"]) for each in parts)).removesuffix("\n")


def page() -> str:
    return "\n".join([HEAD, *(section(found) for _, found in reversed(results("allocator")))])
