# SPDX-License-Identifier: Apache-2.0
"""benchmarks/compressed_pages.py in little."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")


def test_encoded_pages_give_the_same_bits_and_less_crosses_the_link(script, tmp_path):
    output = tmp_path / "rows.json"
    assert (
        script("compressed_pages").main(["--small", "--parts", "stream", "--output", str(output)])
        == 0
    )
    rows = json.loads(output.read_text())["rows"]
    assert [row["compress"] for row in rows] == ["off", "bf16", "off"]
    assert all(row["exact"] and row["within_budget"] for row in rows)
    plain, encoded, again = (row["page_locked_bytes"] for row in rows)
    assert encoded < 0.8 * plain
    assert plain == again


@pytest.mark.slow
def test_more_than_the_host_may_hold_is_the_same_within_two_budgets(script, tmp_path):
    output = tmp_path / "rows.json"
    assert (
        script("compressed_pages").main(["--small", "--parts", "seventy", "--output", str(output)])
        == 0
    )
    rows = json.loads(output.read_text())["rows"]
    assert len(rows) == 4
    assert all(row["exact"] for row in rows)
    assert all(row["page_locked_bytes"] < row["host_memory_bytes"] // 3 for row in rows)
