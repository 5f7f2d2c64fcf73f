# SPDX-License-Identifier: Apache-2.0
"""Who wins: flag, API argument, variable, file, default; and who it was.

Invariant: `resolve` is a pure function of what it is given; only `load` looks at the process
(its environment, its working folder) and warns. Every value carries the source it came from. A
value that is not valid is a UsageError even where a stronger source hides it, because a
configuration that breaks when a flag is left out is a trap.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import files
from .schema import (
    ANCESTORS,
    BY_KEY,
    BY_VARIABLE,
    OPTIONS,
    OTHER_VARIABLES,
    PREFIX,
    Option,
    Settings,
    nearest,
)

DEFAULT = "default"
WARNED: set[str] = set()  # what load() need not say, by whomever it has been said


@dataclass(frozen=True)
class Setting:
    """The value of one option, and where it came from.

    Attributes:
        option: Its row of the table.
        value: The checked value.
        source: "flag --device", "argument device", a variable, a file, or "default".
    """

    option: Option
    value: Any
    source: str


@dataclass(frozen=True)
class Resolved:
    """All options with their sources.

    Attributes:
        settings: The values.
        origins: One `Setting` an option, in the order of the table.
        file: The configuration file that was read, if there is one.
        warnings: What looks like a mistake: files that were not believed, unknown variables and
            keys, one line each.
    """

    settings: Settings
    origins: tuple[Setting, ...]
    file: Path | None
    warnings: tuple[str, ...]


def resolve(
    *,
    flags: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    environ: Mapping[str, str],
    folder: Path,
) -> Resolved:
    """Decide every option.

    Args:
        flags: Values from the command line by field name; None stands for "not given".
        arguments: Values from API calls, likewise.
        environ: The environment.
        folder: Where the search for a file begins.

    Raises:
        UsageError: If a value is not valid; the message names its source.
        FailedError: If the file is not valid.
    """
    found = files.find_file(folder)
    path = found.path
    values = files.flatten(found.table)
    origins = []
    for option in OPTIONS:
        candidates = [
            *_given(option, flags, f"flag {option.flag}"),
            *_given(option, arguments, f"argument {option.field}"),
            *_variables(option, environ),
        ]
        if option.key in values:
            candidates.append((values[option.key], f"{path}: {option.key}"))
        checked = [(option.kind.read(value, source), source) for value, source in candidates]
        value, source = checked[0] if checked else (option.default, DEFAULT)
        origins.append(Setting(option, value, source))
    settings = Settings(**{setting.option.field: setting.value for setting in origins})
    notes = (*found.ignored, *_unknown_variables(environ), *_unknown_keys(values, path))
    return Resolved(settings, tuple(origins), path, notes)


def load(*, arguments: Mapping[str, Any] | None = None) -> Settings:
    """The settings of this process; warns once about each variable or key that nobody reads.

    Args:
        arguments: Values from API calls by field name; None stands for "not given".

    Raises:
        UsageError: If a value is not valid.
        FailedError: If the configuration file is not valid.
    """
    resolved = resolve(arguments=arguments, environ=os.environ, folder=Path.cwd())
    for note in resolved.warnings:
        if note not in WARNED:
            WARNED.add(note)
            warnings.warn(note, stacklevel=3)
    return resolved.settings


def _given(option: Option, values: Mapping[str, Any] | None, source: str) -> list[tuple[Any, str]]:
    value = (values or {}).get(option.field)
    return [] if value is None else [(value, source)]


def _variables(option: Option, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The option's own variable, then those of the ancestors; an empty one counts as not set."""
    own = option.variable
    found = [(environ[own], own)] if environ.get(own) else []
    for alias in option.aliases:
        text = environ.get(alias.variable)
        found += [(alias.convert(text), alias.variable)] if text else []
    return found


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    aliases = [alias.variable for option in OPTIONS for alias in option.aliases]
    known = [*BY_VARIABLE, *OTHER_VARIABLES, *aliases]
    ours = sorted(name for name in environ if name.startswith((PREFIX, *ANCESTORS)))
    unknown = [name for name in ours if name not in known]
    return [f"{name} is set, but nothing reads it{_hint(name, known)}" for name in unknown]


def _unknown_keys(values: Mapping[str, Any], path: Path | None) -> list[str]:
    unknown = sorted(values.keys() - BY_KEY.keys())
    return [f"{path}: nothing reads the key {key}{_hint(key, [*BY_KEY])}" for key in unknown]


def _hint(name: str, known: list[str]) -> str:
    suggestion = nearest(name, known)
    return f"; did you mean {suggestion}?" if suggestion else ""
