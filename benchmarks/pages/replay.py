# SPDX-License-Identifier: Apache-2.0
"""docs/replay.md, made by table.py from the figures of benchmarks/replay_traces.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pages.figures import GIB, columns, made, result
from pages.figures import Rows as Cells

HEAD = Path(__file__).with_name("replay.md")
ALLOCATORS = ("native", "expandable", "stitch")

# What torch.cuda.max_memory_reserved() told in runs of the same programs: native, expandable.
MEASURED = {
    "zero3_opt1.3b_lora_ckpt_bs160": (70.73, 67.14),
    "opt1.3b_full": (19.09, 15.10),
    "opt1.3b_lora_ckpt": (31.73, 28.58),
    "gpt2xl_ckpt": (26.98, 16.36),
    "gpt2xl_generate": (6.92, 6.05),
}


Rows = dict[tuple[str, str], dict[str, Any]]  # of each trace and allocator


def load() -> tuple[dict[str, Any], Rows]:
    document = result("replay")
    return document, {(row["trace"], row["allocator"]): row for row in document["rows"]}


@columns(
    "trace | requested GiB | native | expandable | stitch",
    "{name} | {stitch[peak_requested_bytes]:GiB} | "
    + " | ".join(
        f"{{{kind}[peak_reserved_bytes]:GiB}} GiB, {{{kind}[utilisation]:.1%}}"
        for kind in ALLOCATORS[:2]
    )
    + " | **{stitch[peak_reserved_bytes]:GiB} GiB, {stitch[utilisation]:.1%}**",
)
def packing(rows: Rows) -> Cells:
    for name in MEASURED:
        yield {"name": name, **{kind: rows[name, kind] for kind in ALLOCATORS}}


@columns(
    "trace | driver ms | of the time | of its second half | stitches | served by one made "
    "before | ns a call | with 10 x live blocks",
    "{trace} | {modelled_driver_ms:.0f} | {share:.2%} | {second:.2%} | {stitches:,} | "
    "{stitch_hits:,} | {ns_per_op:.0f} | {ns_per_op_10x_live:.0f}",
)
def cost(rows: Rows) -> Cells:
    for name in MEASURED:
        row = rows[name, "stitch"]
        share = row["modelled_driver_ms"] / row["trace_ms"]
        second = row["modelled_driver_ms_second_half"] / (row["trace_ms"] / 2)
        yield {**row, "share": share, "second": second}


@columns("trace | native: measured, model | error | expandable: measured, model | error")
def models(rows: Rows) -> Cells:
    for name, measured in MEASURED.items():
        cells = []
        for kind, real in zip(ALLOCATORS[:2], measured, strict=True):
            model = rows[name, kind]["peak_reserved_bytes"] / GIB
            cells += [f"{real:.2f}, {model:.2f} GiB", f"{model / real - 1:+.1%}"]
        yield [name, *cells]


def page() -> str:
    document, rows = load()
    text = HEAD.read_text(encoding="utf-8")
    tables = {"packing": packing(rows), "cost": cost(rows), "models": models(rows)}
    tables["made"] = f"{made(document)}. `{document['command']}`"
    for name, table in tables.items():
        text = text.replace(f"@{name}@", table)
    return text
