# SPDX-License-Identifier: Apache-2.0
"""The entry point: finds the verb, and turns every end of it into an exit code.

Exit codes: 0 ok, 1 failed, 2 usage, 3 environment, 4 out of memory, 130 interrupted. An error
that Penstock raises on purpose is printed as two lines on stderr, what happened and what to try;
anything else is a bug of ours, and says so. Only this file ends the process.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import click

from penstock._version import __version__
from penstock.errors import OutOfMemory, PenstockError, UsageError

from .invocation import CONTEXT, Invocation

# Verb -> the module that holds it, as `command`, and its line in the list of verbs.
VERBS = {
    "run": ("penstock.cli.run", "Run any CUDA program within a budget, unchanged."),
    "gpt": ("penstock.cli.gpt", "Run a GPT within a budget of device memory."),
    "finetune": ("penstock.cli.finetune", "Fine-tune a causal LM; report its memory and speed."),
    "compare": ("penstock.cli.compare", "Compare work under several allocators or budgets."),
    "replay": ("penstock.cli.replay", "Say what each allocator would reserve for recorded work."),
    "simulate": ("penstock.cli.simulate", "Say how recorded work would run within a budget."),
    "report": ("penstock.cli.report", "Show results of other verbs side by side."),
    "estimate": ("penstock.cli.estimate", "Say what a model needs and how fast it can be."),
    "doctor": ("penstock.cli.doctor", "Check this machine, and say what to change."),
    "config": ("penstock.cli.config", "Show every option, its value and where it came from."),
}
INTERRUPTED = 130


class VerbGroup(click.Group):
    """A group that knows its verbs by name and imports one only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs, in the order of the registry."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one verb."""
        if name not in VERBS:
            return None
        command: click.Command = importlib.import_module(VERBS[name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or say which one was probably meant."""
        if args and args[0] not in VERBS:
            from penstock.config.schema import nearest

            verb = nearest(args[0].lower(), list(VERBS))
            remedy = f"penstock {verb}" if verb else "penstock --help"
            raise UsageError(f"there is no verb '{args[0]}'", remedy=remedy)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, summary) for name, (_, summary) in VERBS.items()])


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    subcommand_metavar="VERB [OPTIONS]",
    context_settings=CONTEXT,
    epilog="penstock VERB --help explains a verb. Results go to stdout, all else to stderr.",
)
@click.version_option(__version__, prog_name="penstock", message="%(prog)s %(version)s")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Run PyTorch models larger than GPU memory, at the speed of the host link."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows ``penstock``; None takes the process's own.

    Returns:
        The exit code.
    """
    invocation = Invocation()
    try:
        result = root.main(
            args=arguments, prog_name="penstock", standalone_mode=False, obj=invocation
        )
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return 1
    except Exception as error:
        return _fail(error, invocation)
    return result if isinstance(result, int) else 0


def _fail(error: Exception, invocation: Invocation) -> int:
    """Print what went wrong; return the exit code that belongs to it."""
    if isinstance(error, PenstockError):
        _complain(error.what, error.remedy)
        return error.exit_code
    if isinstance(error, click.UsageError):
        help_line = f"{error.ctx.command_path} --help" if error.ctx else "penstock --help"
        _complain(error.format_message(), help_line)
        return UsageError.exit_code
    if isinstance(error, click.ClickException):
        _complain(error.format_message())
        return error.exit_code
    if _is_out_of_memory(error):
        _complain(str(error) or "host memory ran out", "a smaller model, batch or --gpu-memory")
        return OutOfMemory.exit_code
    if invocation.verbose:
        import traceback

        traceback.print_exception(error)
    _complain(
        f"{type(error).__name__}: {error}",
        "run it again with -v and report what it prints: this is a bug of Penstock; please report",
    )
    return 1


def _is_out_of_memory(error: Exception) -> bool:
    """Whether host memory ran out, or torch said that the GPU's did."""
    torch: Any = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds)


def _complain(what: str, remedy: str | None = None) -> None:
    """Print an error as one line, and its remedy as another."""
    click.echo(f"error: {' '.join(what.split())}", err=True)
    if remedy:
        click.echo(f"  try: {remedy}", err=True)


def _abandon_stdout() -> None:
    """The reader of our output is gone: keep the interpreter from complaining when it ends."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run() -> NoReturn:
    """Run the command line as a process."""
    sys.exit(main())
