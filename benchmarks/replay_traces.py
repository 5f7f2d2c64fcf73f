# SPDX-License-Identifier: Apache-2.0
"""Replay traces under every allocator and write the figures: reserved memory, modelled cost, time.

Needs no GPU. Each replay is repeated for its time; the fastest counts, since nothing makes an
allocator faster than it is. Penstock's is timed once more with ten times as many live blocks: small
ones that are allocated first and never freed.

    python benchmarks/replay_traces.py TRACE... [--repeats N] [--output FILE]
    python benchmarks/replay_traces.py --draw    # docs/replay.svg, with matplotlib
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kit.measure import provenance, script_parser
from pages.figures import ROOT
from pages.replay import ALLOCATORS as SHOWN
from pages.replay import MEASURED, load

from penstock.native.replay import ALLOCATORS, Replayed, replay
from penstock.trace import OP_ALLOCATE, OP_FREE_COMPLETED, Trace, read_traces

POINTS = 240
OUTPUT = Path(__file__).parent / "results" / "replay.json"
PICTURE = ROOT / "docs" / "replay.svg"


def most_live(trace: Trace) -> int:
    """The most blocks that are live at one time."""
    change = (trace.op == OP_ALLOCATE).astype(np.int64) - (trace.op == OP_FREE_COMPLETED)
    return int(change.cumsum().max())


def among(trace: Trace, count: int, *, alone: bool = False) -> Trace:
    """The trace, after `count` small blocks that stay; or those `alone`."""
    random = np.random.default_rng(1)

    def before(values: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate(
            [np.asarray(values, dtype=array.dtype), array[: 0 if alone else None]]
        )

    return dataclasses.replace(
        trace,
        op=before(np.zeros(count), trace.op),
        id=before(int(trace.id.max()) + 1 + np.arange(count), trace.id),
        size=before(random.integers(1, 8192, count), trace.size),
        stream=before(np.zeros(count), trace.stream),
        time_us=before(np.full(count, trace.time_us[0]), trace.time_us),
    )


def fastest(trace: Trace, allocator: str, repeats: int) -> Replayed:
    runs = [replay(trace, allocator=allocator, points=POINTS) for _ in range(repeats)]
    return min(runs, key=lambda run: run.figures["ns_per_op"])


def ns_among(trace: Trace, count: int, repeats: int) -> float:
    """Nanoseconds a call of the trace, `count` small blocks being there already."""
    both = fastest(among(trace, count), "stitch", repeats).figures
    before = fastest(among(trace, count, alone=True), "stitch", repeats).figures
    own = both["allocations"] + both["frees"] - count
    return (both["ns_per_op"] * (own + count) - before["ns_per_op"] * count) / own


def rows_of(trace: Trace, repeats: int) -> list[dict[str, Any]]:
    rows = []
    for allocator in ALLOCATORS:
        run = fastest(trace, allocator, repeats)
        row = {"trace": Path(trace.name).stem, "allocator": allocator, **run.figures}
        row["utilisation"] = row["peak_requested_bytes"] / row["peak_reserved_bytes"]
        if allocator == "stitch":
            live = most_live(trace)
            row |= {
                "most_live": live,
                "ns_per_op_10x_live": ns_among(trace, 9 * live, repeats),
            }
        row["curve_ms_mib_mib"] = [
            [time_us // 1000, requested >> 20, reserved >> 20]
            for time_us, requested, reserved in run.curve
        ]
        print(
            f"{row['trace']}: {allocator} {row['utilisation']:.2%}, "
            f"driver {row['modelled_driver_ms'] / row['trace_ms']:.2%}, "
            f"{row['ns_per_op']:.0f} ns a call",
            file=sys.stderr,
        )
        rows.append(row)
    return rows


def main(arguments: list[str]) -> int:
    parser = script_parser(__doc__)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--draw", action="store_true", help="the picture of the figures there are")
    options = parser.parse_args(arguments)
    if options.draw:
        draw()
        return 0
    if not options.traces:
        parser.error("TRACE is missing")
    names = " ".join(map(str, options.traces))
    rows = [
        row
        for path in options.traces
        for trace in read_traces(path)
        for row in rows_of(trace, options.repeats)
    ]
    document = {
        "where": provenance(card=False),
        "command": f"python benchmarks/replay_traces.py {names} --repeats {options.repeats}",
        "rows": rows,
    }
    options.output.write_text(as_text(document), encoding="utf-8")
    return 0


def as_text(document: dict[str, Any]) -> str:
    """JSON with one line a row, since a curve is not for reading."""
    head = json.dumps({key: document[key] for key in ("where", "command")}, indent=1)[:-2]
    rows = ",\n  ".join(json.dumps(row) for row in document["rows"])
    return f'{head},\n "rows": [\n  {rows}\n ]\n}}\n'


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
        for kind in SHOWN:
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
    handles = [plt.Line2D([], [], color=colours[kind]) for kind in SHOWN]
    handles.append(plt.Rectangle((0, 0), 1, 1, color="#ccd5d8"))
    figure.legend(
        handles,
        [*(f"reserved, {kind}" for kind in SHOWN), "requested"],
        loc="outside upper center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
