# SPDX-License-Identifier: Apache-2.0
"""What all verbs share: ``-v``, ``--json [FILE]``, and flags made from the table of options.

Invariant: results go to stdout, everything else to stderr; a JSON file appears whole or not at
all, and an impossible place for it, or one that holds something else, is refused before any work
begins. Used by one thread.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import logging
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from penstock.config import OPTIONS, WARNED, Settings, find_option, resolve
from penstock.errors import EnvironmentProblem, FailedError, UsageError
from penstock.files import check_place, read_json, write_whole
from penstock.results import rows_of

from .invocation import Invocation

STDOUT = "-"
# GB/s between which a link can be: a copy's time in nanoseconds holds.
LINKS = (1e-3, 1e6)
# A list of numbers takes one line of a result.
_NUMBERS = re.compile(r"\[\n\s+((?:[-+.\deE]+|null)(?:,\n\s+(?:[-+.\deE]+|null))*)\n\s+\]")


class _OnStderr(logging.StreamHandler):  # type: ignore[type-arg]  # not before Python 3.11
    """Logs to what stderr is at that moment: the entry point may run more than once."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@dataclass(frozen=True)
class Output:
    """Where the result of a verb goes.

    Attributes:
        json_file: None for people alone, "-" for JSON on stdout, else the file to write.
        force: Whether files may be written over that hold something else.
        flag: What named the file.
    """

    json_file: str | None
    force: bool = False
    flag: str = "--json"

    def check(self) -> None:
        """Refuse a file that cannot be written, or is none of ours.

        Raises:
            FailedError: In either case.
        """
        if self.json_file not in (None, STDOUT):
            check_own(self.flag, str(self.json_file), is_result, "result", force=self.force)

    def emit(self, document: Mapping[str, Any] | Sequence[Any], show: Callable[[], None]) -> None:
        """Give the result away.

        Args:
            document: The result as JSON sees it; numbers that are not finite become null.
            show: Prints the result for people; not called where stdout belongs to JSON.

        Raises:
            FailedError: If the file cannot be written.
        """
        text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
        text = _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
        if self.json_file == STDOUT:
            click.echo(text, nl=False)
            return
        try:
            if self.json_file is not None:  # before anything is printed: stdout may be full
                write_whole(self.flag, self.json_file, text)
        finally:  # nor is what took hours lost with its file
            show()


def between(
    lowest: float, highest: float, unit: str = ""
) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    """The callback of an option whose number is within bounds, both included.

    What is computed of it then is finite, and can be printed.
    """

    def check(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
        if value is not None and not lowest <= value <= highest:
            told = f"{value:g}{unit} is not from {lowest:g} to {highest:g}."
            raise click.BadParameter(told, ctx, parameter)
        return value

    return check


def verb(
    *fields: str, json_output: bool = True, check_file: bool = True
) -> Callable[[Callable[..., Any]], Any]:
    """Give a verb's function the flags that it shares with others.

    The function gets `settings` (`penstock.config.Settings`, decided by flags, variables and the
    file) and, unless `json_output` is False, `output` (`Output`). Goes below `click.command`.

    Args:
        fields: Options of the table that the verb has flags for.
        json_output: Whether the verb has a result to give as JSON.
        check_file: Whether the file of the result is checked before the function is called; else
            that is for the function to do.
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
                values["output"] = _output(**{key: values.pop(key) for key in _OUTPUT})
                if check_file:
                    values["output"].check()
            return function(**values)

        decorated: Any = wrapped
        decorated = click.option(
            "-v", "--verbose", is_flag=True, help=find_option("verbose").summary
        )(decorated)
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


def count(flag: str, about: str, default: int | None = None, **more: Any) -> Callable[..., Any]:
    """A flag that takes a whole number; the verb knows which make sense."""
    shown = default is not None
    return click.option(
        flag, type=int, metavar="N", default=default, show_default=shown, help=about, **more
    )


def hide(command: click.Command, *names: str) -> None:
    """Leave flags out of a verb's help, which names them in its last lines."""
    for parameter in command.params:
        if parameter.name in names and isinstance(parameter, click.Option):
            parameter.hidden = True


def apart(
    files: tuple[Path, ...], output: Output, is_input: Callable[[Path], bool]
) -> tuple[tuple[Path, ...], Output]:
    """The files to read, and where the result goes.

    A file right behind ``--json`` may have been meant to be read: then it is not written over.

    Args:
        files: Those that were given.
        output: As it was given.
        is_input: Whether the verb reads such a file.
    """
    named = output.json_file
    if named in (None, STDOUT) or output.flag != "--json":
        return files, output
    path = Path(str(named))
    if files and not (os.path.isfile(path) and is_input(path)):
        return files, output
    return (path, *files), Output(STDOUT)


def warn_of(unused: dict[str, str]) -> None:
    """Say which flags that were given do nothing: parameters, and what each is for."""
    context = click.get_current_context()
    for name, told in unused.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            click.echo(f"warning: --{name.replace('_', '-')} is for {told}", err=True)


def need_extra(module: str, extra: str) -> None:
    """Refuse to go on without a package that an extra brings.

    Raises:
        EnvironmentProblem: If `module` is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise EnvironmentProblem(
            f"{module} is not installed", remedy=f"pip install 'penstock[{extra}]'"
        )


def check_own(
    flag: str, name: str, is_own: Callable[[Path], bool], kind: str, *, force: bool = False
) -> None:
    """Refuse a place for a file that cannot be written, or that holds something else.

    Args:
        flag: What names the file.
        name: The file.
        is_own: Whether a file that is there and not empty is one that we wrote.
        kind: What we write there, in a word.
        force: Whether it may be written over all the same.

    Raises:
        FailedError: In either case.
    """
    found = check_place(flag, name)
    if force or found is None or not stat.S_ISREG(found.st_mode) or not found.st_size:
        return
    if not _is_standard(found) and not is_own(Path(name)):
        raise FailedError(
            f"{flag}: {name} is there and is no {kind}", remedy="another name, --force"
        )


def check_apart(names: Mapping[str, str | None], inputs: Sequence[Path] = ()) -> None:
    """Refuse two outputs that are one file, and one that is an input, which would be lost.

    Args:
        names: What each flag names.
        inputs: Files that are read.

    Raises:
        UsageError: In either case.
    """
    taken = {os.path.realpath(path): ("FILE", str(path)) for path in inputs}
    for flag, name in names.items():
        if name is None or name == STDOUT:
            continue
        other, first = taken.setdefault(os.path.realpath(name), (flag, name))
        if other != flag:
            raise UsageError(f"{other} and {flag} are both {first}", remedy="two names")


def is_result(path: Path) -> bool:
    """Whether a file holds what a verb gives as JSON."""
    try:
        return bool(rows_of(read_json(path, remedy="")))
    except FailedError:
        return False


def _is_standard(found: os.stat_result) -> bool:
    """Whether stdout or stderr was sent to a file, which holds what they said so far."""
    with contextlib.suppress(OSError):
        return any(os.path.samestat(found, os.fstat(number)) for number in (1, 2))
    return False


force_option = click.option("--force", is_flag=True, help="Write over a file that is not ours.")


_OUTPUT = ("json_file", "output_file", "force")


def _output(json_file: str | None, output_file: str | None, force: bool) -> Output:
    """Where the result goes, by ``--json [FILE]`` or ``-o FILE``.

    Raises:
        UsageError: If the two name different files.
    """
    if output_file is None:
        return Output(json_file, force)
    if json_file not in (None, STDOUT, output_file):
        raise UsageError(f"--json {json_file} and -o {output_file}", remedy="one of them")
    return Output(output_file, force, "-o")


def _json_option(function: Any) -> Any:
    function = click.option(
        *("-o", "--output", "output_file"), metavar="FILE", help="Write the result as JSON to FILE."
    )(function)
    return click.option(
        "--json",
        "json_file",
        is_flag=False,
        flag_value=STDOUT,
        default=None,
        metavar="[FILE]",
        help="Give the result as JSON, on stdout or in FILE.",
    )(force_option(function))


def working_folder() -> Path:
    """The folder that names begin in.

    Raises:
        FailedError: If it was removed.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise FailedError(
            f"the working folder cannot be used: {error.strerror}", remedy="cd to one that exists"
        ) from error


def _settings(flags: Mapping[str, Any]) -> Settings:
    """Decide the options; print what looks like a mistake; set up logging."""
    resolved = resolve(flags=flags, environ=os.environ, folder=working_folder())
    for note in resolved.warnings:
        click.echo(f"warning: {note}", err=True)
    WARNED.update(resolved.warnings)
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
