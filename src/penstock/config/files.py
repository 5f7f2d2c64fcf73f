# SPDX-License-Identifier: Apache-2.0
"""Find and read the configuration file: the nearest one upwards from the working folder.

Invariant: at most one file counts, and it is one that nobody but the user and root could write: a
folder above may be shared, and options name files and say what is safe. In each folder
``penstock.toml`` comes before ``pyproject.toml``, and a ``pyproject.toml`` without
``[tool.penstock]`` is passed over. Reads files, changes nothing.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import FailedError
from penstock.files import read_text
from penstock.units import MIB

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN_FILE = "penstock.toml"
SHARED_FILE = "pyproject.toml"
# Nobody writes a configuration of this size, or keys of so many parts, which take the square of
# their number to read.
_MOST, _MOST_PARTS = MIB, 100


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        path: The file that counts; None where none does.
        table: Its options, nested.
        ignored: What was passed over though it has options, and why, one line each.
    """

    path: Path | None = None
    table: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def find_file(start: Path) -> Found:
    """The file that counts for the folder `start`.

    Raises:
        FailedError: If it cannot be read, or is not TOML.
    """
    ignored: list[str] = []
    for folder in (start, *start.parents):
        for path in (folder / OWN_FILE, folder / SHARED_FILE):
            if not os.path.lexists(path):
                continue
            why = _distrust(path)
            if why is None:
                table = _options(path)
                if table is not None:
                    return Found(path, table, tuple(ignored))
            elif path.name == OWN_FILE or _may_have_options(path):
                ignored.append(f"{path} is ignored: {why}")
    return Found(ignored=tuple(ignored))


def _distrust(path: Path) -> str | None:
    """Why a file is not to be believed; None where only the user and root can have written it."""
    try:
        for each in (path.parent, path, path.resolve()):
            found = each.lstat()
            what = "its folder" if each == path.parent else "it"
            if found.st_uid not in (0, os.geteuid()):
                return f"{what} belongs to user {found.st_uid}, this is user {os.geteuid()}"
            if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode):
                return f"everybody may write to {what}"
        if not stat.S_ISREG(path.stat().st_mode):
            return "it is no ordinary file"
    except (OSError, RuntimeError) as error:
        return f"it cannot be looked at: {getattr(error, 'strerror', None) or error}"
    return None


def _options(path: Path) -> dict[str, Any] | None:
    """The options in a file; None for a pyproject.toml that has none."""
    table = _read(path)
    if path.name == OWN_FILE:
        return table
    for name in ("tool", "tool.penstock"):
        within = table.get(name.rpartition(".")[2])
        if within is None:
            return None
        if not isinstance(within, dict):
            raise FailedError(f"{path}: {name} is not a table", remedy="[tool.penstock]")
        table = within
    return table


def _may_have_options(path: Path) -> bool:
    """Whether a file that is not believed seems to have options; no more is made of it."""
    try:
        return "penstock" in read_text(path, _MOST, remedy="") if path.is_file() else False
    except (FailedError, OSError):
        return False


def flatten(table: dict[str, Any], prefix: str = "", levels: int = 3) -> dict[str, Any]:
    """``{"emulated": {"seed": 1}}`` as ``{"emulated.seed": 1}``; no option is further down."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and levels > 1:
            flat.update(flatten(value, f"{prefix}{key}.", levels - 1))
        else:
            flat[prefix + key] = value
    return flat


def _read(path: Path) -> dict[str, Any]:
    text = read_text(path, _MOST, remedy="a file of options in UTF-8")
    if max((line.count(".") for line in text.splitlines()), default=0) > _MOST_PARTS:
        raise FailedError(f"{path} has a key of more than {_MOST_PARTS} parts")
    try:
        table: dict[str, Any] = tomllib.loads(text)
        return table
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise FailedError(f"{path} is not valid TOML: {error}") from error
