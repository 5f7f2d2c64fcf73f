# SPDX-License-Identifier: Apache-2.0
"""The kinds of value that an option can have: how each is read, checked and described.

Invariant: a kind turns text (a flag, a variable) and a TOML value into the same Python value, or
raises a UsageError that names where the text came from. Pure functions, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import UsageError
from penstock.units import TIB, parse_size

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Kind:
    """How the values of an option are read.

    Attributes:
        name: What a person calls it, such as "size"; also the placeholder in help texts.
        read: ``read(value, name)`` gives the checked value; `name` is the place it came from.
        forms: What may be written, for documentation and remedies.
    """

    name: str
    read: Callable[[Any, str], Any]
    forms: str


def choice(*values: str) -> Kind:
    """One of a few words."""

    def read(value: Any, name: str) -> str:
        text = str(value).strip().lower()
        if text not in values:
            raise UsageError(f"{name} '{value}' is unknown", remedy=", ".join(values))
        return text

    return Kind("choice", read, ", ".join(values))


def choices(*values: str) -> Kind:
    """Some of a few words, with commas between them; which go together is for the user to know."""

    def read(value: Any, name: str) -> str:
        words = [word.strip().lower() for word in str(value).split(",")]
        for word in words:
            if word not in values:
                raise UsageError(f"{name} '{word}' is unknown", remedy=", ".join(values))
        return ",".join(words)

    return Kind("choices", read, "some of " + ", ".join(values))


def device() -> Kind:
    """``auto``, ``cuda``, ``cuda:N`` or ``emulated``."""
    forms = "auto, cuda, cuda:N, emulated"

    def read(value: Any, name: str) -> str:
        text = str(value).strip().lower()
        kind, _, ordinal = text.partition(":")
        numbered = kind == "cuda" and ordinal.isascii() and ordinal.isdigit() and len(ordinal) < 4
        if text in ("auto", "cuda", "emulated"):
            return text
        if numbered:
            return f"cuda:{int(ordinal)}"
        raise UsageError(f"{name} '{value}' is not a device", remedy=forms)

    return Kind("device", read, forms)


def size(*, percent_of: str | None = None) -> Kind:
    """``auto``, or a size as people write it: text, since a percentage needs a total to be bytes.

    Args:
        percent_of: What 100 % would stand for; None refuses percentages.
    """
    forms = "auto, 8GiB, 8GB, bytes"
    if percent_of:
        forms += f", or 80% of {percent_of}"

    def read(value: Any, name: str) -> str:
        text = str(value).strip()
        if text.lower() == "auto":
            return "auto"
        if isinstance(value, bool):
            raise UsageError(f"{name} '{value}' is not a size", remedy=forms)
        # Any total will do here: only the form is checked.
        parse_size(text, total=TIB if percent_of else None, name=name)
        return text

    return Kind("size", read, forms)


def integer(lowest: int, highest: int) -> Kind:
    """A whole number within bounds, both included."""
    forms = f"a whole number from {lowest} to {highest}"

    def read(value: Any, name: str) -> int:
        try:
            number = int(str(value).strip()) if not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not lowest <= number <= highest:
            raise UsageError(f"{name} '{value}' is out of range", remedy=forms)
        return number

    return Kind("integer", read, forms)


def factor() -> Kind:
    """``auto`` or a finite number from 1 on, kept as text as sizes are."""
    forms = "auto, or a number from 1 on"

    def read(value: Any, name: str) -> str:
        text = str(value).strip().lower()
        if text == "auto":
            return text
        try:
            number = float(text) if not isinstance(value, bool) else math.nan
        except ValueError:
            number = math.nan
        if not 1 <= number < math.inf:
            raise UsageError(f"{name} '{value}' is not a factor", remedy=forms)
        return text

    return Kind("factor", read, forms)


def file() -> Kind:
    """The name of a file; empty for none."""

    def read(value: Any, name: str) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise UsageError(f"{name} '{value}' is not the name of a file", remedy="a path")
        return value.strip()

    return Kind("file", read, "a path")


def boolean() -> Kind:
    """Yes or no, in the usual spellings."""

    def read(value: Any, name: str) -> bool:
        text = str(value).strip().lower()
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise UsageError(f"{name} '{value}' is neither yes nor no", remedy="true or false")

    return Kind("boolean", read, "true, false")
