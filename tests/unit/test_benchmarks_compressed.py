# SPDX-License-Identifier: Apache-2.0
"""benchmarks/compressed_pages.py in little."""

from __future__ import annotations

import json

import pytest


def rows_of(script, output, part):
    main = script("compressed_pages").main
    assert main(["--small", "--parts", part, "--output", str(output)]) == 0
    return json.loads(output.read_text())["rows"]


def test_encoded_pages_give_the_same_bits_and_less_crosses_the_link(script, tmp_path):
    rows = rows_of(script, tmp_path / "rows.json", "stream")
    assert [row["compress"] for row in rows] == ["off", "bf16", "off"]
    assert all(row["exact"] and row["within_budget"] for row in rows)
    plain, encoded, again = (row["page_locked_bytes"] for row in rows)
    assert encoded < 0.8 * plain
    assert plain == again


@pytest.mark.slow
def test_more_than_the_host_may_hold_is_the_same_within_two_budgets(script, tmp_path):
    rows = rows_of(script, tmp_path / "rows.json", "seventy")
    assert len(rows) == 4
    assert all(row["exact"] for row in rows)
    assert all(row["page_locked_bytes"] < row["host_memory_bytes"] // 3 for row in rows)
