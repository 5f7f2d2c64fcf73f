# SPDX-License-Identifier: Apache-2.0
"""Sizes, as people write them and as Penstock prints them.

Invariant: sizes print in binary units, with three significant digits; parsing is exact (no floating
point) and everything that is not a positive size is a UsageError that names the text it was given.
Pure functions, standard library only.
"""

from __future__ import annotations

import re
from fractions import Fraction

from penstock.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40
GB = 10**9

_UNITS = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "pib": TIB << 10,
    "kb": 10**3,
    "mb": 10**6,
    "gb": GB,
    "tb": 10**12,
    "pb": 10**15,
}
_BARE_PREFIXES = {"k": "K", "m": "M", "g": "G", "t": "T", "p": "P"}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*|%)")
_MAX_BYTES = (1 << 63) - 1
_MAX_TEXT = 64
_FORMS = "bytes, 450MiB, 8GiB, 8GB or 80%"


def parse_size(text: str | int, total: int | None = None, *, name: str = "size") -> int:
    """Turn a size as people write it into bytes.

    Units are not case-sensitive: B, KiB, MiB, GiB, TiB, PiB (powers of 1024), KB, MB, GB, TB, PB
    (powers of 1000). A fraction is cut to whole bytes.

    Args:
        text: Bytes ("123"), a number and a unit ("8GiB", "1.5 GB") or a percentage ("80%").
        total: What 100 % stands for, in bytes; without it a percentage is refused.
        name: How the message calls the value, such as "--gpu-memory".

    Returns:
        The size in bytes, at least 1 and below 2**63.

    Raises:
        UsageError: If the text is not a positive size.
    """
    shown = str(text)
    shown = shown if len(shown) <= _MAX_TEXT else shown[: _MAX_TEXT - 3] + "..."
    match = None
    if not isinstance(text, bool) and len(str(text)) <= _MAX_TEXT:
        match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise UsageError(f"{name} '{shown}' is not a size", remedy=_FORMS)
    number, unit = Fraction(match[1]), match[2].lower()
    if unit == "%":
        size = _percent(number, total, name=name, shown=shown)
    elif unit in _UNITS:
        if not unit and number.denominator != 1:
            raise UsageError(f"{name} '{shown}' has no unit", remedy=f"{shown}GiB")
        size = int(number * _UNITS[unit])
    elif unit in _BARE_PREFIXES:
        prefix = _BARE_PREFIXES[unit]
        raise UsageError(
            f"{name} '{shown}' could mean 1000s or 1024s",
            remedy=f"{match[1]}{prefix}iB or {match[1]}{prefix}B",
        )
    else:
        raise UsageError(f"{name} '{shown}' has the unknown unit '{match[2]}'", remedy=_FORMS)
    if size < 1:
        raise UsageError(f"{name} '{shown}' is no memory at all", remedy="a size above zero")
    if size > _MAX_BYTES:
        raise UsageError(f"{name} '{shown}' is more than an address can hold", remedy=_FORMS)
    return size


def _percent(number: Fraction, total: int | None, *, name: str, shown: str) -> int:
    if total is None:
        raise UsageError(
            f"{name} '{shown}' is a share of a total that is not known here",
            remedy="a size in bytes, such as 8GiB",
        )
    if number > 100:
        raise UsageError(f"{name} '{shown}' is more than all there is", remedy="100% or less")
    return int(number * total / 100)


def _three_digits(value: float) -> str:
    """`value` with three significant digits, without an exponent; 0 is "0"."""
    if value == 0:
        return "0"
    decimals = 0
    while decimals < 12 and round(abs(value) * 10**decimals) < 100:
        decimals += 1
    return f"{value:.{decimals}f}"


def format_number(value: float) -> str:
    """`value` with three significant digits, thousands set apart: "0.512", "51.2", "51,234"."""
    whole, point, rest = _three_digits(value).partition(".")
    return f"{int(whole):,}{point}{rest}" if value >= 0 else f"-{format_number(-value)}"


def format_bytes(count: float) -> str:
    """`count` bytes in the binary unit that fits, such as "450 MiB" or "13.7 GiB".

    Three significant digits; from 1000 to 1023 all four are kept.
    """
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if round(abs(value)) < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"
