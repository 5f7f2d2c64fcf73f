# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/reliability.md, from the results of tests/faults.py, fuzzing and the soak."""

from __future__ import annotations

from pages.figures import lines, result


def faults() -> str:
    """Of the last run, by engine."""
    last = result("faults")["runs"][-1]
    kinds = ("calls, once", "calls, for good", "allocations", "system calls, once")
    rows = [
        [name, *[f"{counts[kind]:,}" if counts.get(kind) else "" for kind in kinds]]
        for name, counts in last["engines"].items()
    ]
    total = [sum(each.get(kind, 0) for each in last["engines"].values()) for kind in kinds]
    rows.append(["**all**", *[f"**{count:,}**" for count in total]])
    head = "engine | calls of the driver, once | and for good | allocations | writes and the like"
    said = f"{last['failed'] or 'None'} of the tests failed ({last['date']}, {last['commit']})"
    said += "." if last["every"] else "; as many were left out as CI does."
    return f"{lines(head, rows)}\n\n{said}"


def fuzzed() -> str:
    """Of all runs together, by subject."""
    every = result("fuzz")["runs"]
    rows = []
    for name in every[0]["subjects"]:
        of = [run["subjects"][name] for run in every]
        inputs, findings = (sum(each[key] for each in of) for key in ("inputs", "findings"))
        calls = sum(each.get("calls", 0) for each in of)
        refused = sum(each.get("refused", 0) for each in of)
        more = f"{calls:,} calls" if calls else f"{refused:,} refused"
        rows.append([name, f"{inputs:,}", more, str(findings)])
    inputs, findings = (sum(run[key] for run in every) for key in ("inputs", "findings"))
    rows.append(["**all**", f"**{inputs:,}**", "", f"**{findings}**"])
    return lines("subject | inputs | of these | findings", rows)


def soaked() -> str:
    """Each run of the soak."""
    rows = []
    for run in result("soak")["runs"]:
        held = run["held"]
        told = [
            f"{name} {each['first_most']:,} to {each['last_least']:,}"
            for name, each in held.items()
            if name != "looks" and name != "attachments"
        ]
        rows.append(
            [
                f"{run['device']}, {run['seconds']:,} s, seed {run['seed']}",
                f"{(run['bytes_in'] + run['bytes_out']) / 1e12:,.3f} TB",
                f"{run['compared']:,}",
                str(run["wrong"]),
                ", ".join(told).replace("_mib", " MiB"),
            ]
        )
    return lines(
        "run | paged | compared | wrong | held, the most at first to the least at last", rows
    )


TABLES = (faults, fuzzed, soaked)
