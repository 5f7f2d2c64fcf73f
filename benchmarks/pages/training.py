# SPDX-License-Identifier: Apache-2.0
"""Tables of training and fine-tuning, for table.py and its pages."""

from __future__ import annotations

from typing import Any

from pages.figures import GIB, Rows, columns, result, sourced

# Of docs/finetune.md: files of results/finetune, and what labels begin with that are shown.
BUDGETS = ("h200-budgets", "h200-peers", "h200-peers-2", "h200-6.7b-peers")
STRATEGIES = (
    ("h200-strategies-2", ("",)),
    ("h200-strategies", ("opt LRO", "opt RO expandable", "13b")),
    ("h200-ro", ("",)),
    ("h200-x2", ("",)),
    ("h200-x4-3", ("",)),
)
TRAINED = (
    "h100",
    "h100-2",
    "h100-rows-1",
    "h200-stay",
    "h200-again",
    "h200-3b",
    "h200-turns",
    "h200-turns-2",
)
BESIDE = ("h200-7b", "h200-7b-2", "h200-7b-4")


def finetuned(name: str, *begins: str) -> list[dict[str, Any]]:
    """What succeeded, with its label and what it is compared with."""
    document = result(f"finetune/{name}")
    rows = [row for row in document["rows"] if "result" in row]
    resident = [row["result"]["median_step_ms"] for row in rows if row["label"] == "xl resident"]
    found = []
    for row in sourced(name, document, (r for r in rows if r["label"].startswith(begins))):
        x = row["result"]["median_step_ms"] / resident[0] if resident else None
        found.append({**row["result"], **row, "x": x})
    return found


@columns(
    "work | step ms | x resident | device GiB | largest loss difference | file, commit",
    "{label} | {median_step_ms:,.0f} | {x:.2f} | {device:.1f} | {loss_difference:.2g} | {source}",
)
def budgets() -> Rows:
    """Full fine-tunes within budgets, and under peers' offload."""
    for name in BUDGETS:
        for row in finetuned(name, ""):
            yield {**row, "device": row["peak_device_bytes"] / GIB}


@columns(
    "work | step ms | active GiB | reserved GiB | utilisation | file, commit",
    "{label} | {median_step_ms:,.0f} | {active:.1f} | {reserved:.1f} | {utilisation:%} | {source}",
)
def strategies() -> Rows:
    """The same work under the allocators."""
    for name, begins in STRATEGIES:
        for row in finetuned(name, *begins):
            peaks = {kind: row[f"peak_{kind}_bytes"] / GIB for kind in ("active", "reserved")}
            yield {**row, **peaks}


@columns(
    "model | file | budget, GiB | resident needs | resident, and again | ideal | attached "
    "| p99 | x ideal | in turn | peak | losses differ by | resident's by",
    "{model} | {file} | {budget_bytes:GiB} | {plain[torch_peak_bytes]:GiB} | "
    "{times} | {ideal_ms:ms} | {median_ms:ms} | "
    "{p99_ms:ms} | {ratio_to_ideal:.2f} | {ratio_to_ideal_in_turn:.2f} | {used_bytes:GiB} | "
    "{largest_loss_difference:.1e} | {again[largest_loss_difference]:.1e}",
)
def trained() -> Rows:
    """Training beyond the budget, run by run."""
    for name in sorted(TRAINED):
        rows = result(f"training/{name}")["rows"]
        for row in (each for each in rows if "ratio_to_ideal" in each):
            resident = [
                each
                for each in rows
                if each["model"] == row["model"] and each["how"] in ("resident", "again")
            ]
            times = ", ".join(f"{each['median_ms']:,.1f}" for each in resident)
            plain, again = [*resident, {}][:2]
            yield {**row, "file": name, "plain": plain, "times": times, "again": again}


@columns(
    "model | how | budget, GiB | update on | step ms | p99 | x resident | peak | host's peak "
    "| losses differ by | file, commit",
    "{model} | {how} | {budget_bytes:GiB} | {update} | {short}{median_ms:,.0f} | "
    "{p99_ms:,.0f} | {ratio_to_resident:.2f} | {used_bytes:GiB} | {host_peak_bytes:GiB} | "
    "{largest_loss_difference:.1e} | {source}",
)
def trained_beside_peers() -> Rows:
    """Training within a budget, and by peers' offload within the same."""
    for name in BESIDE:
        document = result(f"training/{name}")
        for row in sourced(name, document, document["rows"]):
            short = row.get("error", "").split("\n")[0][:120].replace("|", "/")
            yield {**row, "short": short}


TABLES = (budgets, strategies, trained, trained_beside_peers)
