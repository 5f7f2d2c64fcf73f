# SPDX-License-Identifier: Apache-2.0
"""Find and read the configuration file: the nearest one upwards from the working folder.

Invariant: at most one file counts. In each folder ``penstock.toml`` comes before
``pyproject.toml``, and a ``pyproject.toml`` without ``[tool.penstock]`` is passed over. Reads
files, changes nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from penstock.errors import FailedError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN_FILE = "penstock.toml"
SHARED_FILE = "pyproject.toml"


def find_file(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """The file that counts for the folder `start`, and its options as a nested table.

    Raises:
        FailedError: If it cannot be read, or is not TOML.
    """
    for folder in (start, *start.parents):
        own = folder / OWN_FILE
        if own.is_file():
            return own, _read(own)
        shared = folder / SHARED_FILE
        if shared.is_file():
            table = _read(shared).get("tool", {}).get("penstock")
            if table is not None:
                return shared, _as_table(table, shared)
    return None


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"emulated": {"seed": 1}}`` as ``{"emulated.seed": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _as_table(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FailedError(f"{path}: tool.penstock is not a table", remedy="[tool.penstock]")
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            table: dict[str, Any] = tomllib.load(stream)
            return table
    except OSError as error:
        raise FailedError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FailedError(f"{path} is not valid TOML: {error}") from error
