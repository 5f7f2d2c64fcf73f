# SPDX-License-Identifier: Apache-2.0
"""What all verbs share: ``-v``, ``--json [FILE]``, and flags made from the table of options.

Invariant: results go to stdout, everything else to stderr; a JSON file appears whole or not at
all, and an impossible place for it is refused before any work begins. Used by one thread.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from penstock.config import OPTIONS, Settings, resolve
from penstock.errors import EnvironmentProblem, FailedError

from .invocation import Invocation

STDOUT = "-"


class _OnStderr(logging.StreamHandler[Any]):
    """Logs to what stderr is at that moment: the entry point may run more than once."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@dataclass(frozen=True)
class Output:
    """Where the result of a verb goes.

    Attributes:
        json_file: None for people alone, "-" for JSON on stdout, else the file to write.
    """

    json_file: str | None

    def emit(self, document: Mapping[str, Any] | Sequence[Any], show: Callable[[], None]) -> None:
        """Give the result away.

        Args:
            document: The result as JSON sees it; numbers that are not finite become null.
            show: Prints the result for people; not called where stdout belongs to JSON.

        Raises:
            FailedError: If the file cannot be written.
        """
        if self.json_file != STDOUT:
            show()
        if self.json_file is not None:
            text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
            if self.json_file == STDOUT:
                click.echo(text, nl=False)
            else:
                write_whole("--json", self.json_file, text)


def above_zero(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse, as the callback of an option, zero, what is below, infinity and nan."""
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter(f"{value:g} is not a number above zero.", ctx, parameter)
    return value


def verb(*fields: str, json_output: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Give a verb's function the flags that it shares with others.

    The function gets `settings` (`penstock.config.Settings`, decided by flags, variables and the
    file) and, unless `json_output` is False, `output` (`Output`). Goes below `click.command`.

    Args:
        fields: Options of the table that the verb has flags for.
        json_output: Whether the verb has a result to give as JSON.
    """
    chosen = [option for option in OPTIONS if option.field in fields]
    if len(chosen) != len(fields):
        raise KeyError(f"no such option among {fields}")

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def wrapped(verbose: bool, **values: Any) -> Any:
            flags = {option.field: values.pop(option.field) for option in chosen}
            flags["verbose"] = verbose or None
            values["settings"] = _settings(flags)
            if json_output:
                values["output"] = Output(values.pop("json_file"))
            return function(**values)

        decorated: Any = wrapped
        decorated = click.option("-v", "--verbose", is_flag=True, help=_help("verbose"))(decorated)
        if json_output:
            decorated = _json_option(decorated)
        for option in reversed(chosen):
            if option.kind.name == "boolean":  # a switch: off is what it is without
                decorated = click.option(
                    option.flag, option.field, is_flag=True, default=None, help=option.summary
                )(decorated)
                continue
            metavar = option.kind.name.upper()
            decorated = click.option(
                option.flag, option.field, metavar=metavar, help=option.summary
            )(decorated)
        return decorated

    return decorate


def need_extra(module: str, extra: str) -> None:
    """Refuse to go on without a package that an extra brings.

    Raises:
        EnvironmentProblem: If `module` is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise EnvironmentProblem(
            f"{module} is not installed", remedy=f"pip install 'penstock[{extra}]'"
        )


def check_place(flag: str, name: str) -> None:
    """Refuse a place that a file cannot be written to before a long run, not after it.

    Raises:
        FailedError: If it is a folder, or in one that is not there or not ours to write to.
    """
    path = Path(name)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise FailedError(
            f"{flag}: {name} cannot be written", remedy="a file in a folder that exists"
        )


def write_whole(flag: str, name: str, text: str) -> None:
    """Write a file beside its place and move it there, so that no reader sees half of it.

    Raises:
        FailedError: If that cannot be done.
    """
    import tempfile

    path, temporary = Path(name), None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.absolute().parent, prefix=f".{path.name}.", delete=False
        ) as stream:
            temporary = stream.name
            stream.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise FailedError(f"{flag}: {path} cannot be written: {error.strerror}") from error


def _help(field: str) -> str:
    return next(option.summary for option in OPTIONS if option.field == field)


def _json_option(function: Any) -> Any:
    return click.option(
        "--json",
        "json_file",
        is_flag=False,
        flag_value=STDOUT,
        default=None,
        metavar="[FILE]",
        callback=_check_json_file,
        help="Give the result as JSON, on stdout or in FILE.",
    )(function)


def _check_json_file(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    if value is not None and value != STDOUT:
        check_place("--json", value)
    return value


def _settings(flags: Mapping[str, Any]) -> Settings:
    """Decide the options; print what looks like a mistake; set up logging."""
    resolved = resolve(flags=flags, environ=os.environ, folder=Path.cwd())
    for note in resolved.warnings:
        click.echo(f"warning: {note}", err=True)
    settings = resolved.settings
    click.get_current_context().ensure_object(Invocation).verbose = settings.verbose
    level = getattr(logging, settings.log_level.upper())
    logger = logging.getLogger("penstock")
    if not logger.handlers:
        handler = _OnStderr()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(min(level, logging.INFO) if settings.verbose else level)
    return settings


def _finite(value: Any) -> Any:
    """The value with null for every number that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
