# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/reliability.md, from the results of tests/faults.py, fuzzing and the soak."""

from __future__ import annotations

from typing import Any

from pages.figures import Rows, columns, lines, result


def faults() -> str:
    """Of the last run, by engine."""
    last = result("faults")["runs"][-1]
    kinds = ("calls, once", "calls, for good", "allocations", "system calls, once")
    engines = last["engines"]
    rows = [
        [name, *(f"{counts[kind]:,}" if counts.get(kind) else "" for kind in kinds)]
        for name, counts in engines.items()
    ]
    total = [sum(each.get(kind, 0) for each in engines.values()) for kind in kinds]
    rows.append(["**all**", *(f"**{count:,}**" for count in total)])
    head = "engine | calls of the driver, once | and for good | allocations | writes and the like"
    said = f"{last['failed'] or 'None'} of the tests failed ({last['date']}, {last['commit']})"
    said += "." if last["every"] else "; as many were left out as CI does."
    return f"{lines(head, rows)}\n\n{said}"


@columns("subject | inputs | of these | findings")
def fuzzed() -> Rows:
    """Of all runs together, by subject."""
    every = result("fuzz")["runs"]

    def total(key: str, of: list[dict[str, Any]]) -> int:
        return sum(each.get(key, 0) for each in of)

    for name in every[0]["subjects"]:
        of = [run["subjects"][name] for run in every]
        calls, refused = total("calls", of), total("refused", of)
        more = f"{calls:,} calls" if calls else f"{refused:,} refused"
        yield [name, f"{total('inputs', of):,}", more, str(total("findings", of))]
    yield ["**all**", f"**{total('inputs', every):,}**", "", f"**{total('findings', every)}**"]


@columns(
    "run | paged | compared | wrong | held, the most at first to the least at last",
    "{device}, {seconds:,} s, seed {seed} | {tb:,.3f} TB | {compared:,} | {wrong} | {told}",
)
def soaked() -> Rows:
    """Each run of the soak."""
    for run in result("soak")["runs"]:
        held = {k: v for k, v in run["held"].items() if k not in ("looks", "attachments")}
        told = [f"{k} {v['first_most']:,} to {v['last_least']:,}" for k, v in held.items()]
        tb = (run["bytes_in"] + run["bytes_out"]) / 1e12
        yield {**run, "tb": tb, "told": ", ".join(told).replace("_mib", " MiB")}


TABLES = (faults, fuzzed, soaked)
