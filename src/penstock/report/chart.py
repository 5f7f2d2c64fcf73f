# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG text that stands in an HTML page: lines over an axis, and bars.

Invariant: plain SVG without scripts or outside resources; colours are the page's own variables
(``--series-0`` and on, ``--soft``, ``--grid``), so that a chart follows its theme; all text is
escaped. Pure, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 280
LEFT, RIGHT, TOP, BOTTOM = 96, 16, 14, 40
BAR = 26
# Of a bar chart: where bars begin, how long a whole one is, and the letters left of them.
BAR_LEFT, BAR_WIDTH, BAR_NAME = 190, 400, 27
TICKS = 5
_LEAST = 1e-300
_STROKE = 'stroke-width="1.8" stroke-linejoin="round"'
_GRID = 'style="stroke: var(--grid)"'
_FONT = "font: 12px system-ui, sans-serif; fill: var(--soft)"


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        name: What it is called when pointed at.
        xs: Where its points are.
        ys: Their values, as many.
        colour: Number of its colour.
        area: Whether it is filled down to zero and drawn without a line.
        steps: Whether a value holds until the next point.
        dashed: Whether the line is broken, to tell it from another of its colour.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: int
    area: bool = False
    steps: bool = False
    dashed: bool = False


def nice_ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Round numbers from `low` or below to `high` or above: 1, 2 or 5 times a power of ten apart.

    Args:
        low: The least value.
        high: The largest; where it is not above `low`, there is one step above.
        count: About how many steps.
    """
    span = high - low
    least = max(abs(low) * 1e-12, _LEAST)  # below it neighbouring ticks would be one number
    if not span > least or not math.isfinite(span):
        span = abs(low) if abs(low) > _LEAST else 1.0
        high = low + span
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def binary_ticks(high: float) -> list[float]:
    """Ticks for bytes, from zero: 1, 2, 4 or 8 times a power of 16 apart."""
    step = 2.0 ** max(0, math.ceil(math.log2(max(high, 1.0) / TICKS)))
    return [number * step for number in range(math.ceil(max(high, 1.0) / step) + 1)]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_text: Callable[[float], str],
    y_ticks: Sequence[float],
) -> str:
    """Lines over a common axis.

    Args:
        series: At least one with a point; drawn in their order.
        title: What readers of the page that cannot see it are told.
        x_label: Under the axis.
        y_label: Beside it.
        y_text: Writes a value of the y axis.
        y_ticks: Where the y axis has its lines, in order; the first and last are its ends.
    """
    xs = [x for each in series for x in each.xs]
    across = _scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    x_ticks = [tick for tick in nice_ticks(min(xs), max(xs)) if min(xs) <= tick <= max(xs)]
    up = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [_open(title, HEIGHT)]
    for tick in y_ticks:
        y = up(tick)
        parts.append(
            f'<line style="stroke: var(--grid)" x1="{LEFT}" x2="{WIDTH - RIGHT}" {_ys(y, y)}/>'
        )
        parts.append(_text(LEFT - 8, y + 4, y_text(tick), "end"))
    below = HEIGHT - BOTTOM + 18
    parts += [_text(across(tick), below, f"{tick:g}", "middle") for tick in x_ticks]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label, "middle"))
    parts.append(
        f'<text style="{_FONT}" text-anchor="middle" '
        f'transform="translate(14 {HEIGHT / 2 - 12:.0f}) rotate(-90)">{escape(y_label)}</text>'
    )
    parts += [_line(each, across, up, up(y_ticks[0])) for each in series if len(each.xs)]
    return "\n".join([*parts, "</svg>"])


def bar_chart(
    bars: Sequence[tuple[str, float, str, int]], *, title: str, most: float | None = None
) -> str:
    """Horizontal bars from zero.

    Args:
        bars: (name, value, its text, number of its colour) from top to bottom.
        title: What readers of the page that cannot see it are told.
        most: Value of a whole bar; by default the largest.
    """
    height = 2 * TOP + BAR * len(bars)
    left = BAR_LEFT
    largest = max((value for _, value, *_ in bars), default=1.0)
    scale = _scale(0.0, most or largest, 0, BAR_WIDTH)
    parts = [_open(title, height)]
    for number, (name, value, text, colour) in enumerate(bars):
        y = TOP + BAR * number
        width = max(1.0, scale(value))
        shown = name if len(name) <= BAR_NAME else "..." + name[3 - BAR_NAME :]
        parts.append(_text(left - 10, y + 16, shown, "end"))
        parts.append(
            f'<rect x="{left}" y="{y + 4}" width="{width:.1f}" height="{BAR - 10}" rx="2" '
            f'style="fill: var(--series-{colour})"><title>{escape(name)}</title></rect>'
        )
        parts.append(_text(left + width + 8, y + 16, text, "start"))
    return "\n".join([*parts, "</svg>"])


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def _open(title: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text style="{_FONT}" {place}>{escape(text)}</text>'


def _ys(first: float, second: float) -> str:
    return f'y1="{first:.1f}" y2="{second:.1f}"'


def _line(
    series: Series, across: Callable[[float], float], up: Callable[[float], float], floor: float
) -> str:
    points: list[str] = []
    for x, y in zip(series.xs, series.ys, strict=True):
        if series.steps and points:
            points.append(f"{across(x):.1f},{points[-1].partition(',')[2]}")
        points.append(f"{across(x):.1f},{up(y):.1f}")
    colour = f"var(--series-{series.colour})"
    if series.area:
        first, last = points[0].partition(",")[0], points[-1].partition(",")[0]
        outline = " ".join([f"{first},{floor:.1f}", *points, f"{last},{floor:.1f}"])
        shape = f'<polygon points="{outline}" fill-opacity="0.16" style="fill: {colour}">'
        return f"{shape}<title>{escape(series.name)}</title></polygon>"
    stroke = _STROKE + (' stroke-dasharray="5 4"' if series.dashed else "")
    shape = f'<polyline points="{" ".join(points)}" fill="none" {stroke} style="stroke: {colour}">'
    dots = ""
    if len(series.xs) <= 40 and not series.steps:
        dots = "".join(
            f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.4" style="fill: {colour}"/>'
            for x, y in zip(series.xs, series.ys, strict=True)
        )
    return f"{shape}<title>{escape(series.name)}</title></polyline>{dots}"
