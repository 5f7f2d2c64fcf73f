# SPDX-License-Identifier: Apache-2.0
"""A JSON document, read key by key: what is not of the kind that it should be is an error.

Invariant: what comes out has the type that was asked for; a number is finite and below 2**63, so
that it can be printed and drawn. Files are not to be trusted: they may be anybody's. Pure but for
`load`, standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import FailedError
from penstock.files import read_json
from penstock.text import printable

_BOUND = 2.0**63
_REMEDY = "write it anew: penstock VERB ... --json FILE"


def load(path: Path) -> Any:
    """What a JSON file holds; numbers that JSON has no word for are null.

    Raises:
        FailedError: If it is not there, or not JSON.
    """
    try:
        os.stat(path)
    except PermissionError:
        pass  # it may be there; reading says that we may not
    except (OSError, ValueError) as error:
        raise FailedError(
            f"there is no file {path}", remedy="penstock VERB ... --json FILE"
        ) from error
    return read_json(path, remedy=_REMEDY)


class Fields:
    """One object of a document.

    Args:
        values: The object.
        place: What messages call it, such as the name of its file.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values = values
        self.place = place

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def need(self, keys: Iterable[str]) -> None:
        """Refuse an object without one of these keys; null is a value here."""
        for key in keys:
            if key not in self._values:
                raise FailedError(f"{self.place}: {key} is missing", remedy=_REMEDY)

    def text(self, key: str, default: str | None = None) -> str:
        """A text, fit to be shown; `default` where there is none."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, value, "a text")
        return printable(value)

    def number(self, key: str) -> float | None:
        """A number, not below zero; None where there is none."""
        value = self._values.get(key)
        if value is None:
            return None
        if not _is_number(value) or value < 0:
            raise self.wrong(key, value, "a number of zero or more")
        number: float = value
        return number

    def count(self, key: str, default: int | None = None) -> int | None:
        """A number cut to a whole one; `default` where there is none."""
        value = self.number(key)
        return default if value is None else int(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Whether something holds; `default` where nothing is said."""
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def numbers(self, key: str, *, least: float = 0.0) -> list[float | None]:
        """A list of numbers, in which null stands for one that was not finite; maybe empty."""
        values = self.sequence(key)
        for value in values:
            if value is not None and not (_is_number(value) and value >= least):
                raise self.wrong(key, values, f"a list of numbers from {least:g} on")
        return list(values)

    def sequence(self, key: str) -> Sequence[Any]:
        """A list; empty where there is none."""
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(key, value, "a list")
        return value

    def within(self, key: str) -> Fields:
        """An object within; an empty one where there is none."""
        value = self._values.get(key)
        return self.item({} if value is None else value, key)

    def item(self, value: Any, name: str) -> Fields:
        """One object of a list within."""
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return Fields(value, self.place)

    def wrong(self, key: str, value: Any, wanted: str) -> FailedError:
        """The error of a value that is not what it should be."""
        shown = json.dumps(value)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        return FailedError(f"{self.place}: {key} is {shown}, not {wanted}", remedy=_REMEDY)


def _is_number(value: Any) -> bool:
    """Whether a value is a number that can be drawn; booleans, infinity and nan are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _BOUND
