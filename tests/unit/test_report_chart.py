# SPDX-License-Identifier: Apache-2.0
"""Charts: round ticks, points where they belong, text that cannot break out."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from penstock.report.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Series,
    bar_chart,
    binary_ticks,
    line_chart,
    nice_ticks,
)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (6.19, 6.23, [6.19, 6.2, 6.21, 6.22, 6.23]),
        (3, 3, [3, 4, 5, 6]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_ticks_are_round_and_reach_over(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)


def test_ticks_of_bytes_are_powers_of_two_apart():
    gib = 1 << 30
    assert binary_ticks(15 * gib) == [0, 4 * gib, 8 * gib, 12 * gib, 16 * gib]
    assert binary_ticks(0)[0] == 0


def chart(*series):
    text = line_chart(
        series,
        title="A & B",
        x_label="step",
        y_label="ms",
        y_text=lambda value: f"{value:g}",
        y_ticks=[0, 5, 10],
    )
    return text, ElementTree.fromstring(text)


def test_a_line_goes_from_corner_to_corner():
    _, tree = chart(Series("<x>", [1, 2, 3], [0, 5, 10], 0))
    line = next(each for each in tree.iter() if each.tag.endswith("polyline"))
    points = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    middle = ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    assert points == [(LEFT, HEIGHT - BOTTOM), middle, (WIDTH - RIGHT, TOP)]
    assert line[0].text == "<x>"


def test_a_step_holds_its_value_until_the_next():
    text, _ = chart(Series("held", [0, 1], [0, 10], 1, steps=True))
    points = re.search(r'<polyline points="([^"]+)"', text).group(1).split()
    assert len(points) == 3
    assert points[1] == f"{WIDTH - RIGHT:.1f},{HEIGHT - BOTTOM:.1f}"


def test_bars_are_as_long_as_their_values():
    tree = ElementTree.fromstring(
        bar_chart([("a<b", 0.5, "50%", 0), ("b", 1.0, "100%", 1)], title="t", most=1.0)
    )
    widths = [float(each.get("width")) for each in tree.iter() if each.tag.endswith("rect")]
    assert widths[1] == 2 * widths[0]


def test_the_end_of_a_long_name_tells_bars_apart():
    tree = ElementTree.fromstring(
        bar_chart([("traces of a long night, native", 0.5, "50%", 0)], title="t")
    )
    shown = [each.text for each in tree.iter() if each.tag.endswith(("text", "title"))]
    assert "... of a long night, native" in shown
    assert "traces of a long night, native" in shown
