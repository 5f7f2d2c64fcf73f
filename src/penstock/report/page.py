# SPDX-License-Identifier: Apache-2.0
"""Results as one HTML page: table, memory over time, utilisation, step times, loss.

The page needs nothing but itself: no scripts, no fonts or styles from elsewhere; light or dark as
the reader's system is. The JSON that it was made from is in it. A chart stands where a result has
something for it. Pure but for `is_page`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from penstock.units import format_bytes, format_number

from .chart import Series, bar_chart, binary_ticks, line_chart, nice_ticks
from .columns import tabulate
from .result import Result

COLOURS = 6
# Curves that ask for the same but for this share are drawn as one area.
ALIKE = 0.01
# Within so many bytes a page says whose it is.
_HEAD = 512
# By this a page of ours is known.
MARK = '<meta name="generator" content="penstock">'
STYLE = """
:root { color-scheme: light dark; --ink: #1d2427; --soft: #5b676c; --grid: #dfe5e7;
  --paper: #ffffff; --series-0: #d1495b; --series-1: #c9861a; --series-2: #00798c;
  --series-3: #5b5ea6; --series-4: #66a182; --series-5: #8d6a9f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebed; --soft: #9aa7ac; --grid: #2f393d;
  --paper: #14191b; --series-0: #f0788a; --series-1: #edae49; --series-2: #35b4c8;
  --series-3: #9a9ce0; --series-4: #86c9a3; --series-5: #bd98d1; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 36px 0 6px; }
p { margin: 4px 0 12px; } .soft { color: var(--soft); }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 8px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead, tbody { border-bottom: 1px solid var(--grid); }
td.own { padding: 0 8px 6px 25px; font-size: 13px; color: var(--soft); }
th { font-weight: 600; color: var(--soft); }
td.wide { text-align: left; white-space: normal; color: var(--series-0); }
svg { width: 100%; height: auto; display: block; }
svg, h2 + p { max-width: 800px; }
.key { display: inline-block; width: 6px; height: 6px; border: 2px solid; border-radius: 2px;
  margin-right: 7px; }
.scroll { overflow-x: auto; }
"""

Numbered = Sequence[tuple[int, Result]]


def page(results: Sequence[Result], *, title: str, command: str, data: Any) -> str:
    """The whole page.

    Args:
        results: At least one, in the order of the table.
        title: The heading.
        command: What ran, or made the page.
        data: The JSON to keep in the page.
    """
    done = [(number, each) for number, each in enumerate(results) if each.failure is None]
    parts = [f"<h1>{escape(title)}</h1>", f"<p><code>{escape(command)}</code></p>"]
    parts += [_table(results), _memory(done), _utilisation(done), _steps(done), _loss(done)]
    kept = json.dumps(data).replace("<", "\\u003c")
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{MARK}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n"
        f'</main><script type="application/json" id="data">{kept}</script></body></html>\n'
    )


def is_page(path: Path) -> bool:
    """Whether a file begins as the pages do that `page` makes."""
    try:
        with path.open("rb") as stream:
            return MARK.encode() in stream.read(_HEAD)
    except OSError:
        return False


def _section(title: str, note: str, *charts: str) -> str:
    return f'<h2>{title}</h2><p class="soft">{escape(note)}</p>' + "".join(charts)


def _table(results: Sequence[Result]) -> str:
    """What all results share, then a row for each, under it what is its own."""
    table = tabulate(results)
    lines = [f'<p class="soft">{escape(line)}</p>' for line in (table.shared, *table.notes) if line]
    lines.append('<div class="scroll"><table><thead><tr><th>result</th>')
    lines += [f"<th>{escape(heading)}</th>" for heading in table.headings or ["outcome"]]
    lines.append("</tr></thead>")
    across = max(1, len(table.headings))
    for number, result in enumerate(results):
        line = f"<tbody><tr><td>{_key(number)}{escape(result.name)}</td>"
        if result.failure is not None:
            said = escape(result.error or result.failure)
            line += f'<td class="wide" colspan="{across}">{said}</td>'
        line += "".join(f"<td>{escape(cell)}</td>" for cell in table.cells[number])
        lines.append(line + "</tr>")
        if table.settings[number]:
            own = escape(table.settings[number])
            lines.append(f'<tr><td class="own" colspan="{across + 1}">{own}</td></tr>')
        lines.append("</tbody>")
    return "\n".join([*lines, "</table></div>"])


def _key(number: int) -> str:
    """The colour of a result's lines: a full square, or an empty one where they are dashed."""
    colour = f"var(--series-{number % COLOURS})"
    filled = "" if _dashed(number) else f"; background: {colour}"
    return f'<span class="key" style="border-color: {colour}{filled}"></span>'


def _dashed(number: int) -> bool:
    """Whether the colours are used up, so that this one is not the first of its own."""
    return number >= COLOURS


def _memory(done: Numbered) -> str:
    series: list[Series] = []
    areas: list[float] = []
    for number, result in done:
        curve = result.memory_over_time
        if curve is None:
            continue
        seconds = [ms / 1e3 for ms in curve.ms]
        colour, most = number % COLOURS, max(curve.requested)
        if all(abs(most - other) > ALIKE * other for other in areas):
            areas.append(most)
            asked = f"{result.name}, requested"
            series.insert(0, Series(asked, seconds, curve.requested, colour, area=True))
        held = f"{result.name}, reserved"
        series.append(
            Series(held, seconds, curve.reserved, colour, steps=True, dashed=_dashed(number))
        )
    if not series:
        return ""
    chart = line_chart(
        series,
        title="Memory over time",
        x_label="seconds",
        y_label="device memory",
        y_text=format_bytes,
        y_ticks=binary_ticks(max(value for each in series for value in each.ys)),
    )
    note = "Lines: what the allocator holds. Areas: what tensors ask for."
    return _section("Memory over time", note, chart)


def _utilisation(done: Numbered) -> str:
    bars = [
        (result.name, result.utilisation, f"{result.utilisation:.1%}", number % COLOURS)
        for number, result in done
        if result.utilisation is not None
    ]
    if not bars:
        return ""
    chart = bar_chart(bars, title="Utilisation", most=1.0)
    return _section("Utilisation", "Peak requested over peak reserved memory.", chart)


def _steps(done: Numbered) -> str:
    bars = []
    for number, result in done:
        middle, ratio = result.median_step_ms, result.ratio_to_ideal
        if middle is not None:
            text = f"{format_number(middle)} ms"
            text += f", {ratio:.2f} x ideal" if ratio is not None else ""
            bars.append((result.name, middle, text, number % COLOURS))
    if not bars:
        return ""
    lines = _lines(
        [(number, result.name, result.first_step, result.step_ms) for number, result in done],
        title="Step by step",
        y_label="ms",
        from_zero=True,
    )
    note = "The median, then step by step; without the first steps, which warm up."
    return _section("Step time", note, bar_chart(bars, title="Step time"), lines)


def _loss(done: Numbered) -> str:
    chart = _lines(
        [(number, result.name, 1, result.loss) for number, result in done],
        title="Loss",
        y_label="loss",
    )
    return _section("Loss", "Curves that agree lie on each other.", chart) if chart else ""


def _lines(
    rows: Sequence[tuple[int, str, int, Sequence[float | None]]],
    *,
    title: str,
    y_label: str,
    from_zero: bool = False,
) -> str:
    """A value a step, of (number, name, first step, values); nothing where no row has two."""
    if all(len(values) < 2 for *_, values in rows):
        return ""
    series = []
    for number, name, first, values in rows:
        points = [(first + at, value) for at, value in enumerate(values) if value is not None]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        series.append(Series(name, xs, ys, number % COLOURS, dashed=_dashed(number)))
    found = [value for each in series for value in each.ys]
    if not found:
        return ""
    return line_chart(
        series,
        title=title,
        x_label="step",
        y_label=y_label,
        y_text=lambda value: f"{value:g}",
        y_ticks=nice_ticks(0.0 if from_zero else min(found), max(found)),
    )
