# SPDX-License-Identifier: Apache-2.0
"""A comparison as one HTML page: table, memory over time, utilisation, step times, loss.

The page needs nothing but itself: no scripts, no fonts or styles from elsewhere; light or dark as
the reader's system is. The JSON that it was made from is in it. Works from that document alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from penstock.report.chart import Series, bar_chart, binary_ticks, line_chart, nice_ticks
from penstock.units import format_bytes, format_number

COLOURS = 6
STYLE = """
:root { color-scheme: light dark; --ink: #1d2427; --soft: #5b676c; --grid: #dfe5e7;
  --paper: #ffffff; --series-0: #d1495b; --series-1: #c9861a; --series-2: #00798c;
  --series-3: #5b5ea6; --series-4: #66a182; --series-5: #8d6a9f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebed; --soft: #9aa7ac; --grid: #2f393d;
  --paper: #14191b; --series-0: #f0788a; --series-1: #edae49; --series-2: #35b4c8;
  --series-3: #9a9ce0; --series-4: #86c9a3; --series-5: #bd98d1; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 800px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 6px; }
p { margin: 4px 0 12px; } .soft { color: var(--soft); }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 8px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--soft); }
td.wide { text-align: left; white-space: normal; color: var(--series-0); }
svg { width: 100%; height: auto; display: block; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 7px; }
.scroll { overflow-x: auto; }
"""
HEADINGS = (
    *("setting", "requested", "active", "reserved", "utilisation", "step ms", "tokens/s"),
    "loss differs by",
)

Row = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    """The whole page for a document of `compare.document`."""
    rows = document["rows"]
    done = [(number, row) for number, row in enumerate(rows) if row["result"] is not None]
    parts = [_head(document, done), _table(rows)]
    if done:
        parts += [_memory(done), _utilisation(done), _steps(done), _loss(done)]
    data = json.dumps(document).replace("<", "\\u003c")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>penstock compare</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n"
        f'</main><script type="application/json" id="data">{data}</script></body></html>\n'
    )


def cells(row: Row) -> list[str]:
    """One setting as the cells of a table, under `HEADINGS`."""
    result = row["result"]
    if result is None:
        return [row["name"], row["error"] or "failed"]
    median, rate = result["median_step_ms"], result["tokens_per_second"]
    differs = row["loss_difference"]
    return [
        row["name"],
        format_bytes(result["peak_requested_bytes"]),
        format_bytes(result["peak_active_bytes"]),
        format_bytes(result["peak_reserved_bytes"]),
        f"{result['utilisation']:.1%}",
        "-" if median is None else format_number(median),
        "-" if rate is None else format_number(rate),
        "-" if differs is None else ("nothing" if differs == 0 else f"{differs:.2g}"),
    ]


def _head(document: Mapping[str, Any], done: Sequence[tuple[int, Row]]) -> str:
    command = escape("penstock " + " ".join(document["work"]))
    lines = ["<h1>The same fine-tune, compared</h1>", f"<p><code>{command}</code></p>"]
    if done:
        result = done[0][1]["result"]
        what = (
            f"{result['model']}, strategy {result['strategy']}, {result['batch']} x "
            f"{result['seq_len']:,} tokens, {result['steps']} steps, {result['dtype']}, "
            f"{result['gpus']} x {result['device_name']}, {result['engine']}; "
            f"torch {result['torch']}, penstock {result['version']}"
        )
        lines.append(f'<p class="soft">{escape(what)}</p>')
        if result["memory_figures"] == "replayed":
            lines.append(
                '<p class="soft">There was no GPU: memory is that of the recorded allocations, '
                "replayed on each allocator, and times say nothing.</p>"
            )
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> str:
    lines = ['<div class="scroll"><table><thead><tr>']
    lines += [f"<th>{escape(heading)}</th>" for heading in HEADINGS]
    lines.append("</tr></thead><tbody>")
    for number, row in enumerate(rows):
        first, *others = cells(row)
        key = f'<span class="key" style="background: var(--series-{number % COLOURS})"></span>'
        line = f"<tr><td>{key}{escape(first)}</td>"
        if row["result"] is None:
            line += f'<td class="wide" colspan="{len(HEADINGS) - 1}">{escape(others[0])}</td>'
        else:
            line += "".join(f"<td>{escape(cell)}</td>" for cell in others)
        lines.append(line + "</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _memory(done: Sequence[tuple[int, Row]]) -> str:
    series: list[Series] = []
    for number, row in done:
        curve = row["result"]["memory_over_time"]
        seconds = [value / 1e3 for value in curve["ms"]]
        if seconds:
            colour, name = number % COLOURS, row["name"]
            if not series:  # the others ask for the same
                asked = curve["requested"]
                series.append(Series(f"{name}, requested", seconds, asked, colour, area=True))
            held = curve["reserved"]
            series.append(Series(f"{name}, reserved", seconds, held, colour, steps=True))
    if not series:
        return ""
    most = max(value for each in series for value in each.ys)
    chart = line_chart(
        series,
        title="Memory over time",
        x_label="seconds",
        y_label="device memory",
        y_text=format_bytes,
        y_ticks=binary_ticks(most),
    )
    note = f"Lines: what the allocator holds. Area: what tensors ask for ({done[0][1]['name']})."
    return f'<h2>Memory over time</h2><p class="soft">{note}</p>{chart}'


def _utilisation(done: Sequence[tuple[int, Row]]) -> str:
    bars = [
        (row["name"], row["result"]["utilisation"], f"{row['result']['utilisation']:.1%}", colour)
        for colour, row in ((number % COLOURS, row) for number, row in done)
    ]
    chart = bar_chart(bars, title="Utilisation", most=1.0)
    return (
        '<h2>Utilisation</h2><p class="soft">Peak requested over peak reserved memory.</p>' + chart
    )


def _steps(done: Sequence[tuple[int, Row]]) -> str:
    series: list[Series] = []
    for number, row in done:
        result = row["result"]
        times = result["step_ms"][result["timed_from"] :]
        places = range(result["timed_from"] + 1, result["timed_from"] + 1 + len(times))
        series.append(Series(row["name"], list(places), times, number % COLOURS))
    series = [each for each in series if each.xs]
    if not series:
        return ""
    most = max(value for each in series for value in each.ys)
    chart = line_chart(
        series,
        title="Step time",
        x_label="step",
        y_label="ms",
        y_text=lambda value: f"{value:g}",
        y_ticks=nice_ticks(0.0, most),
    )
    return f'<h2>Step time</h2><p class="soft">Without the first steps, which warm up.</p>{chart}'


def _loss(done: Sequence[tuple[int, Row]]) -> str:
    series = [
        Series(
            row["name"],
            list(range(1, len(row["result"]["loss"]) + 1)),
            row["result"]["loss"],
            number % COLOURS,
        )
        for number, row in done
    ]
    values = [value for each in series for value in each.ys]
    chart = line_chart(
        series,
        title="Loss",
        x_label="step",
        y_label="loss",
        y_text=lambda value: f"{value:g}",
        y_ticks=nice_ticks(min(values), max(values)),
    )
    return f'<h2>Loss</h2><p class="soft">Curves that agree lie on each other.</p>{chart}'
