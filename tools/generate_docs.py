# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference/ from the code: the table of options, and the verbs with their flags.

The pages hold nothing that was typed twice; a test checks that they are current.

Usage: python tools/generate_docs.py [--check]   (--check writes nothing, exits 1 if one is stale)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from penstock.cli.main import VERBS, VerbGroup
from penstock.config import OPTIONS, Option

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "<!-- Written by tools/generate_docs.py; change the code, then run `make docs`. -->"

CONFIGURATION = f"""{NOTE}
# Configuration

Every option can be set in four places. The first of these that says anything wins:

1. a flag of the command line (`--gpu-memory 8GiB`), where the verb has it;
2. an argument of an API call (`gpu_memory="8GiB"`);
3. a variable of the environment (`PENSTOCK_GPU_MEMORY=8GiB`);
4. the nearest `penstock.toml`, or `[tool.penstock]` in a `pyproject.toml`, in the working folder
   or one above it.

`penstock config show` lists every option with its value and the place it came from, and
`penstock config explain OPTION` explains one. A `PENSTOCK_*` variable or a key that nothing
reads is reported, with the name that was probably meant.

Sizes: `8GiB` (1024-based), `8GB` (1000-based), `80%` where there is a total, or plain bytes.

```toml
# penstock.toml
gpu_memory = "8GiB"
safety = "strict"

[emulated]
capacity = "1GiB"
```

## Options

| key | variable | default | values | meaning |
|---|---|---|---|---|
"""

ALIASES = """
## Names of other systems

These variables are understood as well; Penstock's own win over them.

| variable | sets |
|---|---|
"""

COMMANDS = f"""{NOTE}
# The command line

Results go to stdout; progress, warnings and errors go to stderr. Every verb but `run` has
`--json [FILE]`: the result as JSON, on stdout or in a file that appears whole or not at all.
(Where a word that is not a file follows, write `--json=FILE` or put `--json` last.) Each result has
`schema_version`, `verb` and `version`, that of the Penstock that wrote it.

| exit code | meaning |
|---|---|
| 0 | ok |
| 1 | failed: a file that is not there or not valid, a check that does not hold |
| 2 | usage: an unknown verb, flag, model or dtype, a size or count that makes no sense |
| 3 | environment: no GPU where one was asked for, no driver, a missing extra |
| 4 | out of memory: a budget below the largest layer, host memory that does not suffice |
| 130 | interrupted |

Verbs and flags are completed by the shell after this line in its start file; for others than bash
`zsh_source` or `fish_source`:

```sh
eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"
```
"""


def configuration() -> str:
    """The page about options."""
    rows = "".join(f"{_row(option)}\n" for option in OPTIONS)
    aliases = "".join(
        f"| `{alias.variable}` | `{option.key}` |\n"
        for option in OPTIONS
        for alias in option.aliases
    )
    return CONFIGURATION + rows + ALIASES + aliases


def command_line() -> str:
    """The page about verbs."""
    return COMMANDS + "".join(f"\n{section}" for section in _sections())


def _row(option: Option) -> str:
    meaning = f"{option.summary} {option.details}".strip()
    cells = (f"`{option.key}`", f"`{option.variable}`", f"`{_text(option.default)}`")
    return "| " + " | ".join((*cells, option.kind.forms, meaning)) + " |"


def _sections() -> Iterator[str]:
    group = VerbGroup()
    context = click.Context(group)
    for name in VERBS:
        command = group.get_command(context, name)
        assert command is not None
        yield _section(f"penstock {name}", command)
        if isinstance(command, click.Group):
            for inner, subcommand in sorted(command.commands.items()):
                yield _section(f"penstock {name} {inner}", subcommand)


def _section(name: str, command: click.Command) -> str:
    arguments = [
        parameter.make_metavar(click.Context(command))
        if _takes_context(parameter)
        else parameter.make_metavar()  # type: ignore[call-arg]
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    ]
    title = " ".join([name, *arguments])
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    about, _, example = text.partition("Example")
    code = "\n".join(line.strip() for line in example.partition(":\n")[2].splitlines())
    parts = [f"## {title}\n\n{about.strip()}\n"]
    if code.strip():
        parts.append(f"\n```sh\n{code.strip()}\n```\n")
    options = [option for option in command.params if isinstance(option, click.Option)]
    if options:
        parts.append("\n| flag | meaning |\n|---|---|\n")
        parts += [f"| `{_flag(option)}` | {_meaning(option)} |\n" for option in options]
    return "".join(parts)


def _takes_context(parameter: click.Parameter) -> bool:
    """make_metavar() wants a context since click 8.2."""
    return "ctx" in inspect.signature(parameter.make_metavar).parameters


def _flag(option: click.Option) -> str:
    names = ", ".join(option.opts)
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(map(str, option.type.choices))}"
    return f"{names} {option.metavar or option.type.name.split()[0].upper()}"


def _meaning(option: click.Option) -> str:
    shown = option.show_default is True and not option.is_flag
    default = f" Default: {_text(option.default)}." if shown else ""
    return (option.help or "").replace("|", "\\|") + default


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def main(arguments: list[str]) -> int:
    pages = {"configuration.md": configuration(), "cli.md": command_line()}
    stale = []
    for name, text in pages.items():
        path = FOLDER / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                FOLDER.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        print(f"stale: {', '.join(stale)}; run make docs", file=sys.stderr)
        return 1
    print(f"docs/reference: {', '.join(stale) or 'nothing'} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
