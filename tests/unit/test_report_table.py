# SPDX-License-Identifier: Apache-2.0
"""Tables on a terminal: whatever its width, no digit is cut."""

from __future__ import annotations

import re

import pytest

from penstock.report.table import Column, print_table

TITLES = ("requested", "reserved", "utilisation", "driver ms", "of time", "2nd half", "ns a call")
COLUMNS = [Column("trace"), Column("allocator"), *(Column(each, right=True) for each in TITLES)]
ROWS = [
    [
        *("a/long/name/of/a/trace/that/does/not/fit.npz", "expandable", "1,234,567 GiB"),
        *("2,345,678 GiB", "98.76%", "3,456,789", "12.34%", "56.78%", "45,678,901"),
    ]
] * 2


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_numbers_are_whole_at_every_width(width, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "\u2026" not in out
    for cell in (*ROWS[0][2:], *TITLES):
        assert re.search(rf"(?<![\w,.]){re.escape(cell)}(?![\w,.])", out), cell
    assert max(map(len, out.splitlines())) <= width


def test_what_fits_is_one_table(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    print_table([Column("option"), Column("value"), Column("source")], [["a", "b", "c"]] * 3)
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(lines) == 4
