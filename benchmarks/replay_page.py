# SPDX-License-Identifier: Apache-2.0
"""docs/replay.md, made by table.py from the figures of benchmarks/replay_traces.py; its picture.

Run as a script it draws the picture, with matplotlib, which nothing else here needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures import GIB, ROOT, lines, made, result, shown
from measure import script_parser

PICTURE = ROOT / "docs" / "replay.svg"
HEAD = Path(__file__).with_name("replay_page.md")
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


def packing(rows: Rows) -> str:
    return shown(
        "trace | requested GiB | native | expandable | stitch",
        "{name} | {stitch[peak_requested_bytes]:GiB} | "
        + " | ".join(
            f"{{{kind}[peak_reserved_bytes]:GiB}} GiB, {{{kind}[utilisation]:.1%}}"
            for kind in ALLOCATORS[:2]
        )
        + " | **{stitch[peak_reserved_bytes]:GiB} GiB, {stitch[utilisation]:.1%}**",
        [{"name": name, **{k: rows[name, k] for k in ALLOCATORS}} for name in MEASURED],
    )


def cost(rows: Rows) -> str:
    found = []
    for name in MEASURED:
        row = rows[name, "stitch"]
        share = row["modelled_driver_ms"] / row["trace_ms"]
        second = row["modelled_driver_ms_second_half"] / (row["trace_ms"] / 2)
        found.append({**row, "share": share, "second": second})
    return shown(
        "trace | driver ms | of the time | of its second half | stitches | served by one made "
        "before | ns a call | with 10 x live blocks",
        "{trace} | {modelled_driver_ms:.0f} | {share:.2%} | {second:.2%} | {stitches:,} | "
        "{stitch_hits:,} | {ns_per_op:.0f} | {ns_per_op_10x_live:.0f}",
        found,
    )


def models(rows: Rows) -> str:
    found = []
    for name, measured in MEASURED.items():
        cells = []
        for kind, real in zip(ALLOCATORS[:2], measured, strict=True):
            model = rows[name, kind]["peak_reserved_bytes"] / GIB
            cells += [f"{real:.2f}, {model:.2f} GiB", f"{model / real - 1:+.1%}"]
        found.append([name, *cells])
    return lines(
        "trace | native: measured, model | error | expandable: measured, model | error", found
    )


def page() -> str:
    document, rows = load()
    text = HEAD.read_text(encoding="utf-8")
    tables = {"packing": packing(rows), "cost": cost(rows), "models": models(rows)}
    tables["made"] = f"{made(document)}. `{document['command']}`"
    for name, table in tables.items():
        text = text.replace(f"@{name}@", table)
    return text


def draw() -> None:
    """One panel a trace: reserved memory over time, and what was requested of it."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "penstock"  # the same figures give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
    import matplotlib.pyplot as plt

    _, rows = load()
    colours = {"native": "#d1495b", "expandable": "#edae49", "stitch": "#00798c"}
    figure, panels = plt.subplots(len(MEASURED), 1, figsize=(8, 11), layout="constrained")
    for panel, name in zip(panels, MEASURED, strict=True):
        for kind in ALLOCATORS:
            times, requested, reserved = zip(*rows[name, kind]["curve_ms_mib_mib"], strict=True)
            seconds = [value / 1e3 for value in times]
            if kind == "stitch":
                panel.fill_between(
                    seconds, [value / 1024 for value in requested], color="#ccd5d8", lw=0
                )
            panel.plot(seconds, [value / 1024 for value in reserved], color=colours[kind], lw=1.4)
        panel.set_title(name, loc="left", fontsize=9)
        panel.set_ylabel("GiB", fontsize=8)
        panel.set_ylim(bottom=0)
        panel.margins(x=0)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds", fontsize=8)
    handles = [plt.Line2D([], [], color=colours[kind]) for kind in ALLOCATORS]
    handles.append(plt.Rectangle((0, 0), 1, 1, color="#ccd5d8"))
    figure.legend(
        handles,
        [*(f"reserved, {kind}" for kind in ALLOCATORS), "requested"],
        loc="outside upper center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    script_parser(__doc__).parse_args()
    draw()
