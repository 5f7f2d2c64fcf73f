# SPDX-License-Identifier: Apache-2.0
"""``penstock config``: every option with its value and where that came from."""

from __future__ import annotations

import os
from typing import Any

import click

from penstock.config import Option, Resolved, Settings, find_option, resolve
from penstock.report.table import Column, print_table
from penstock.results import with_head

from .common import Output, verb, working_folder
from .invocation import CONTEXT


@click.group(invoke_without_command=True, context_settings=CONTEXT)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show every option, its value and where it came from.

    A flag beats an API argument, which beats a PENSTOCK_* variable, which beats penstock.toml
    (or [tool.penstock] in pyproject.toml, here or in a folder above), which beats the default.

    \b
    Examples:
      penstock config show
      PENSTOCK_GPU_MEMORY=8GiB penstock config show --json
      penstock config explain gpu_memory
    """  # noqa: D301
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command()
@verb()
def show(settings: Settings, output: Output) -> None:
    """List every option, its value and its source.

    \b
    Example:
      penstock config show
    """  # noqa: D301
    flags = {"verbose": True} if settings.verbose else {}
    resolved = resolve(flags=flags, environ=os.environ, folder=working_folder())
    output.emit(_document(resolved), lambda: _print_all(resolved))


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("key")
@verb()
def explain(key: str, settings: Settings, output: Output) -> None:
    """Explain one option, named by its key, flag or variable.

    \b
    Example:
      penstock config explain emulated.capacity
    """  # noqa: D301
    option = find_option(key)
    output.emit(with_head("config", _describe(option)), lambda: _print_one(option))


def _document(resolved: Resolved) -> dict[str, Any]:
    values = {
        "file": str(resolved.file) if resolved.file else None,
        "options": [
            {"key": origin.option.key, "value": origin.value, "source": origin.source}
            for origin in resolved.origins
        ],
        "warnings": list(resolved.warnings),
    }
    return with_head("config", values)


def _print_all(resolved: Resolved) -> None:
    columns = [Column("option"), Column("value"), Column("source")]
    rows = [(origin.option.key, _text(origin.value), origin.source) for origin in resolved.origins]
    print_table(columns, rows)


def _describe(option: Option) -> dict[str, Any]:
    return {
        "key": option.key,
        "flag": option.flag if _verbs_with(option) else None,
        "verbs": _verbs_with(option),
        "variable": option.variable,
        "default": option.default,
        "values": option.kind.forms,
        "summary": option.summary,
        "details": option.details,
        "aliases": [alias.variable for alias in option.aliases],
    }


def _verbs_with(option: Option) -> list[str]:
    """The verbs that have a flag for an option."""
    from .main import VERBS, VerbGroup

    group = VerbGroup()
    commands = {name: group.get_command(click.Context(group), name) for name in VERBS}
    return [
        name
        for name, verb in commands.items()
        if verb is not None and any(option.flag in parameter.opts for parameter in verb.params)
    ]


def _print_one(option: Option) -> None:
    verbs = _verbs_with(option)
    rows = [
        ("values", option.kind.forms),
        ("default", _text(option.default)),
        ("flag", f"{option.flag} of {', '.join(verbs)}" if verbs else "none"),
        ("variable", option.variable),
        ("file", f"{option.key} in penstock.toml"),
    ]
    if option.aliases:
        rows.append(("also", ", ".join(alias.variable for alias in option.aliases)))
    click.echo(click.wrap_text(f"{option.key}: {option.summary} {option.details}".strip(), 80))
    click.echo()
    for name, value in rows:
        click.echo(f"  {name:9} {value}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
