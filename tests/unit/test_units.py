# SPDX-License-Identifier: Apache-2.0
"""Sizes and rates: what is accepted, what is refused and how, how they print."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.units import format_bytes, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123", 123),
        (123, 123),
        ("1B", 1),
        ("1KiB", 1024),
        ("450MiB", 450 * 2**20),
        ("8GiB", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("8 gib", 8 * 2**30),
        (" 1.5GiB ", 3 * 2**29),
        (".5TiB", 2**39),
        ("0.1GB", 10**8),
        ("1.0000001KiB", 1024),
    ],
)
def test_sizes(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "total", "expected"), [("80%", 1000, 800), ("100%", 7, 7), ("12.5 %", 2**33, 2**30)]
)
def test_shares_of_a_total(text, total, expected):
    assert parse_size(text, total) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a size"),
        ("-1GiB", "not a size"),
        ("nan", "not a size"),
        ("inf", "not a size"),
        ("1e9", "not a size"),
        ("1_000", "not a size"),
        ("GiB", "not a size"),
        ("8GiB8", "not a size"),
        ("\u0663", "not a size"),
        (True, "not a size"),
        (None, "not a size"),
        ("9" * 400, "not a size"),
        ("0", "no memory at all"),
        ("0.0GiB", "no memory at all"),
        ("0.5B", "no memory at all"),
        ("8XB", "unknown unit 'XB'"),
        ("8G", "8GiB or 8GB"),
        ("1.5", "no unit"),
        ("80%", "a total that is not known"),
        ("9000000TiB", "more than an address can hold"),
    ],
)
def test_nonsense_is_refused(text, said):
    with pytest.raises(UsageError, match="--gpu-memory") as caught:
        parse_size(text, name="--gpu-memory")
    message = str(caught.value)
    assert said in message
    assert "; try: " in message
    assert "\n" not in message
    assert len(message) < 200


@pytest.mark.parametrize(("text", "said"), [("101%", "more than all"), ("0%", "no memory")])
def test_impossible_shares_are_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_size(text, 2**30)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1023 * 1024, "1023 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (450 * 2**20, "450 MiB"),
        (13.72e9, "12.8 GiB"),
        (2**30 - 2**10, "1.00 GiB"),
        (-5 * 2**20, "-5.00 MiB"),
        (700 * 2**30, "700 GiB"),
    ],
)
def test_format_bytes(count, text):
    assert format_bytes(count) == text


@given(st.integers(min_value=1, max_value=2**62))
def test_what_is_printed_can_be_read_back_within_three_digits(count):
    # Half a unit of the third digit, and the fraction of a byte that parsing cuts off.
    assert abs(parse_size(format_bytes(count)) - count) <= 0.005 * count + 1


def test_errors_and_units_do_not_import_torch():
    code = "import sys, penstock.errors, penstock.units, penstock.models.configs; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
