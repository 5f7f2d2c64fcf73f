# SPDX-License-Identifier: Apache-2.0
"""Tables of training and fine-tuning, for table.py: docs/training.md and docs/finetune.md."""

from __future__ import annotations

from typing import Any

from figures import GIB, commit, lines, percent, result, results, shown

# Of docs/finetune.md: files of results/finetune, and what labels begin with that are shown.
BUDGETS = ("h200-budgets", "h200-peers", "h200-peers-2", "h200-6.7b-peers")
STRATEGIES = (
    ("h200-strategies-2", ("",)),
    ("h200-strategies", ("opt LRO", "opt RO expandable", "13b")),
    ("h200-ro", ("",)),
    ("h200-x2", ("",)),
    ("h200-x4-3", ("",)),
)
TRAINED = ("h100", "h100-2", "h100-rows-1", "h200-stay", "h200-again")
BESIDE = ("h200-7b", "h200-7b-2", "h200-7b-3", "h200-7b-4")
FULL = ("h200-xl-1", "h200-xl-2", "h200-6.7b")  # of docs/training.md


def finetuned(name: str, *begins: str) -> list[tuple[str, dict[str, Any], str]]:
    """Label, row and source of what succeeded; the source stands in the first row alone."""
    document = result(f"finetune/{name}")
    chosen = [row for row in document["rows"] if "result" in row]
    chosen = [row for row in chosen if row["label"].startswith(begins)]
    sources = [f"{name}, {commit(document)}", *[""] * len(chosen)]
    return [(row["label"], row, source) for row, source in zip(chosen, sources, strict=False)]


def budgets() -> str:
    """Full fine-tunes within budgets, and under peers' offload."""
    rows = []
    for name in BUDGETS:
        runs = finetuned(name, "")
        by = {label: row["result"]["median_step_ms"] for label, row, _ in runs}
        resident = by.get("xl resident")
        for label, row, source in runs:
            found, difference = row["result"], row["loss_difference"]
            took = found["median_step_ms"]
            cells = [label, f"{took:,.0f}", f"{took / resident:.2f}" if resident else ""]
            cells += [f"{found['peak_device_bytes'] / GIB:.1f}"]
            rows.append([*cells, f"{difference:.2g}" if difference is not None else "", source])
    head = "work | step ms | x resident | device GiB | largest loss difference | file, commit"
    return lines(head, rows)


def strategies() -> str:
    """The same work under the allocators."""
    rows = []
    for name, begins in STRATEGIES:
        for label, row, source in finetuned(name, *begins):
            found = row["result"]
            sizes = (found[f"peak_{kind}_bytes"] / GIB for kind in ("active", "reserved"))
            cells = [label, f"{found['median_step_ms']:,.0f}", *(f"{size:.1f}" for size in sizes)]
            rows.append([*cells, percent(found["utilisation"]), source])
    return lines("work | step ms | active GiB | reserved GiB | utilisation | file, commit", rows)


def trained() -> str:
    """Training beyond the budget, run by run."""
    found = []
    for name, document in sorted(results("training")):
        rows = document["rows"] if name in TRAINED else []
        for row in (each for each in rows if "ratio_to_ideal" in each):
            resident = [
                each
                for each in rows
                if each["model"] == row["model"] and each["how"] in ("resident", "again")
            ]
            found.append({**row, "file": name, "plain": resident[0], "again": resident[1]})
    return shown(
        "model | file | budget, GiB | resident needs | resident, and again | ideal | attached "
        "| p99 | x ideal | in turn | peak | losses differ by | resident's by",
        "{model} | {file} | {budget_bytes:GiB} | {plain[torch_peak_bytes]:GiB} | "
        "{plain[median_ms]:ms}, {again[median_ms]:ms} | {ideal_ms:ms} | {median_ms:ms} | "
        "{p99_ms:ms} | {ratio_to_ideal:.2f} | {ratio_to_ideal_in_turn:.2f} | {used_bytes:GiB} | "
        "{largest_loss_difference:.1e} | {again[largest_loss_difference]:.1e}",
        found,
    )


def trained_beside_peers() -> str:
    """Training within a budget, and by peers' offload within the same."""
    found = []
    for name, document in sorted(results("training")):
        source = f"{name}, {commit(document)}"
        for row in document["rows"] if name in BESIDE else []:
            short = row.get("error", "").split("\n")[0][:120].replace("|", "/")
            found.append({**row, "short": short, "source": source})
            source = ""
    return shown(
        "model | how | budget, GiB | update on | step ms | p99 | x resident | peak | host's peak "
        "| losses differ by | file, commit",
        "{model} | {how} | {budget_bytes:GiB} | {update} | {short}{median_ms:,.0f} | "
        "{p99_ms:,.0f} | {ratio_to_resident:.2f} | {used_bytes:GiB} | {host_peak_bytes:GiB} | "
        "{largest_loss_difference:.1e} | {source}",
        found,
    )


def full_finetunes() -> str:
    """Full fine-tunes by training_budget.py, within budgets."""
    found = []
    for name in FULL:
        document = result(f"training/{name}")
        source = f"{name}, {commit(document)}"
        for row in (each for each in document["rows"] if "median_ms" in each):
            ways = [row.get("stats", {}).get(f"iteration_bytes_{way}") for way in ("in", "out")]
            found.append(
                {
                    **{"budget": row["how"], **row},
                    # A resident row is compared with itself.
                    "largest_loss_difference": row.get("largest_loss_difference") or None,
                    "moved": ", ".join(f"{way / 1e9:.1f}" for way in ways if way is not None),
                    "source": source,
                }
            )
            source = ""
    return shown(
        "work | step ms | p10 to p90 | x resident | GB in, out a step | used GiB "
        "| largest loss difference | file, commit",
        "{model}, {budget} | {median_ms:ms} | {p10_ms:ms} to {p90_ms:ms} | "
        "{ratio_to_resident:.2f} | {moved} | {used_bytes:GiB} | {largest_loss_difference:.1e} | "
        "{source}",
        found,
    )
