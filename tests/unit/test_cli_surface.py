# SPDX-License-Identifier: Apache-2.0
"""The verbs and flags that scripts rely on: what tests/unit/cli_surface.json says, exactly.

A flag may be added there on purpose; to remove or rename one is to break somebody's script.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from penstock.cli.main import VERBS, VerbGroup

FROZEN = Path(__file__).with_name("cli_surface.json")


def surface() -> dict[str, list[str]]:
    found = {}

    def visit(name: str, command: click.Command) -> None:
        names = [
            parameter.human_readable_name if isinstance(parameter, click.Argument) else flag
            for parameter in command.params
            for flag in sorted(parameter.opts + parameter.secondary_opts)
        ]
        found[name] = sorted(names)
        if isinstance(command, click.Group):
            for inner, subcommand in command.commands.items():
                visit(f"{name} {inner}", subcommand)

    group = VerbGroup()
    for name in VERBS:
        visit(name, group.get_command(click.Context(group), name))
    return found


def test_the_command_line_is_what_was_promised():
    assert surface() == json.loads(FROZEN.read_text(encoding="utf-8"))


def test_every_flag_says_what_it_does():
    group = VerbGroup()
    commands = [group.get_command(click.Context(group), name) for name in VERBS]
    for command in [
        *commands,
        *(
            each
            for group in commands
            if isinstance(group, click.Group)
            for each in group.commands.values()
        ),
    ]:
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, parameter.name
