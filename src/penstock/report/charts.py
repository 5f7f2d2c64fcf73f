# SPDX-License-Identifier: Apache-2.0
"""The charts of a page: memory by kind, the lanes of a step, page heat, step times, losses.

Figures of bokeh, whose script stands in the page: nothing is fetched. A chart is there where a
result has something for it. Imported only where a page is made: bokeh is the extra ``report``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from bokeh.embed import components
from bokeh.models import ColumnDataSource, PlainText
from bokeh.palettes import Colorblind, Inferno256
from bokeh.plotting import figure
from bokeh.resources import Resources

from penstock.units import GIB, MIB

from .result import Result

COLOURS = [colour for number, colour in enumerate(Colorblind[8]) if number != 2]  # yellow is pale
# What bokeh calls its objects, a document and elements: in what is drawn, and in where it goes.
_DRAWN = re.compile(r"""(?<="id":")p\d+(?=")|(?<=docs_json = '\{")[\w-]{36}""")
_PLACED = re.compile(r'(?<=")(?:p\d+|[\w-]{36})(?=")')
KINDS = {
    **{"weights": COLOURS[0], "activations": COLOURS[1], "tensors": COLOURS[1]},
    **{"cache": COLOURS[3], "free": "#d9dee0"},
}
LANES = {"out": "copies out", "in": "copies in", "compute": "compute"}
Numbered = Sequence[tuple[int, Result]]


def sections(results: Numbered) -> list[tuple[str, str, list[Any]]]:
    """Title, note and figures of each part of a page, those that the results have."""
    parts: list[tuple[str, str, list[Any]]] = [
        (
            "Memory over time",
            "What the program holds, by kind, as far as the recording tells kinds apart; what is "
            "beyond the budget waits on the host.",
            _each(results, _memory),
        ),
        (
            "One step, and page heat",
            "When kernels and each direction of the link were busy; without a recording only for "
            "how long. Which of the pages that stay are touched as the step gives its work: the "
            "stronger the colour, the more often.",
            [*_each(results, _lanes), *_each(results, _heat)],
        ),
        (
            "Step time",
            "Without the first steps, which warm up.",
            _lines([(n, each, each.first_step, each.step_ms) for n, each in results], "ms"),
        ),
        (
            "Loss",
            "Curves that agree lie on each other.",
            _lines([(n, each, 1, each.loss) for n, each in results], "loss"),
        ),
    ]
    return [part for part in parts if part[2]]


def embedded(figures: Sequence[Any]) -> tuple[str, list[str]]:
    """The scripts of figures, and the element that each is drawn into.

    The same figures give the same text: bokeh's names are drawn by chance, or counted on.
    """
    script, elements = components(list(figures))
    drawn, at, placed = script.rpartition("const render_items")
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"chart-{len(names)}")

    script = _DRAWN.sub(renamed, drawn) + at + _PLACED.sub(renamed, placed)
    elements = [_PLACED.sub(renamed, each) for each in elements]
    return Resources(mode="inline", components=["bokeh"]).render_js() + script, elements


def _each(results: Numbered, chart: Callable[[Result], Any]) -> list[Any]:
    made = [(each, chart(each)) for _, each in results]
    found = [(each, plot) for each, plot in made if plot is not None]
    for each, plot in found:
        if len(results) > 1:
            plot.title.text = PlainText(text=each.name)  # not as TeX between dollar signs
    return [plot for _, plot in found]


def _figure(x: str, y: str, **more: Any) -> Any:
    fixed = {"height": 210, "sizing_mode": "stretch_width", "toolbar_location": None, "tools": ""}
    return figure(**fixed | {"x_axis_label": x, "y_axis_label": y} | more)


def _memory(result: Result) -> Any:
    curve = result.memory_over_time
    if curve is None:
        return None
    parts = curve.parts(result.gpu_memory_bytes)
    most = max(map(sum, zip(*parts.values(), strict=True)))
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    data = {kind: [value / unit for value in values] for kind, values in parts.items()}
    data["x"] = [ms / 1e3 for ms in curve.ms]
    kinds = list(parts)
    plot = _figure("s", name, x_range=(data["x"][0], data["x"][-1]))
    plot.varea_stack(
        kinds,
        x="x",
        color=[KINDS[kind] for kind in kinds],
        legend_label=kinds,
        source=ColumnDataSource(data),
    )
    if result.gpu_memory_bytes is not None:
        plot.hspan(
            y=result.gpu_memory_bytes / unit,
            line_color="black",
            line_dash="dashed",
            legend_label="budget",
        )
    _legend_above(plot, len(kinds) + 1)
    return plot


def _lanes(result: Result) -> Any:
    if not any(result.lanes.values()):
        return None
    plot = _figure("ms", "", y_range=list(LANES.values()), height=210, tools="hover")
    plot.hover.tooltips = "@left ms to @right ms"
    for colour, (lane, name) in zip((2, 1, 0), LANES.items(), strict=True):
        spans = result.lanes.get(lane, ())
        left, right = [begin for begin, _ in spans], [end for _, end in spans]
        plot.hbar(
            y=[name] * len(spans),
            left=left,
            right=right,
            height=0.7,
            color=COLOURS[colour],
        )
    return plot


def _heat(result: Result) -> Any:
    heat = result.heat
    if heat is None:
        return None
    import numpy as np

    plot = _figure("ms", "GiB", x_range=(0, heat.ms), y_range=(0, heat.bytes / GIB))
    plot.image(
        image=[np.array(heat.touches)],
        **{"x": 0, "y": 0, "dw": heat.ms, "dh": heat.bytes / GIB, "palette": Inferno256[::-1]},
    )
    return plot


def _lines(
    rows: Sequence[tuple[int, Result, int, Sequence[float | None]]], y_label: str
) -> list[Any]:
    """A value a step; nothing where no row has two."""
    plot = None
    for number, result, first, values in rows:
        points = [(first + at, value) for at, value in enumerate(values) if value is not None]
        if len(points) < 2:
            continue
        plot = plot or _figure("step", y_label)
        plot.line(
            *zip(*points, strict=True),
            color=colour_of(number),
            line_dash="solid" if number < len(COLOURS) else "dashed",
            line_width=2,
            legend_label=result.name,
        )
    if plot is None:
        return []
    plot.xaxis[0].ticker.min_interval = 1
    _legend_above(plot, 2)
    return [plot]


def colour_of(number: int) -> str:
    """The colour of a result, wherever it is shown."""
    return str(COLOURS[number % len(COLOURS)])


def _legend_above(plot: Any, columns: int) -> None:
    legend = plot.legend[0]
    legend.orientation, legend.ncols, legend.border_line_color = "horizontal", columns, None
    plot.add_layout(legend, "above")
