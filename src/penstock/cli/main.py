# SPDX-License-Identifier: Apache-2.0
"""The entry point: finds the verb, and turns every end of it into an exit code.

Exit codes: 0 ok, 1 failed, 2 usage, 3 environment, 4 out of memory, 130 interrupted. An error
that Penstock raises on purpose is printed as two lines on stderr, what happened and what to try;
what the system refuses is one too; anything else is a bug of ours, and says so. A process that is
asked to end (SIGTERM) ends what it started and leaves no files. Only this file ends the process.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import re
import signal
import sys
from typing import Any, NoReturn

import click

from penstock._version import __version__
from penstock.errors import OutOfMemory, PenstockError, UsageError
from penstock.text import one_line

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
    "top": ("penstock.cli.top", "Show what is on each GPU now, process by process."),
    "doctor": ("penstock.cli.doctor", "Check this machine, and say what to change."),
    "config": ("penstock.cli.config", "Show every option, its value and where it came from."),
}
INTERRUPTED = 130
# What torch calls itself where host memory does not suffice.
_CPU_ALLOCATOR = "DefaultCPUAllocator"
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


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
    except click.Abort as error:
        cause = error.__cause__
        # click takes the end of any file for that of what somebody types.
        return _fail(cause, invocation) if isinstance(cause, EOFError) else _interrupted()
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        _abandon_stdout()
        return 1
    except Exception as error:
        return _fail(error, invocation)
    return result if isinstance(result, int) else 0


def _interrupted() -> int:
    _complain("interrupted")
    return INTERRUPTED


def _fail(error: Exception, invocation: Invocation) -> int:
    """Print what went wrong; return the exit code that belongs to it."""
    if isinstance(error, PenstockError):
        _complain(error.what, error.remedy and _in_flags(error.remedy))
        return error.exit_code
    if isinstance(error, click.UsageError):
        help_line = f"{error.ctx.command_path} --help" if error.ctx else "penstock --help"
        _complain(error.format_message(), help_line)
        return UsageError.exit_code
    if isinstance(error, click.ClickException):
        _complain(error.format_message())
        return error.exit_code
    if _is_out_of_memory(error):
        said = str(error).rpartition(_CPU_ALLOCATOR)[2].strip(": ")
        _complain(said or "host memory ran out", "a smaller model, batch or --gpu-memory")
        return OutOfMemory.exit_code
    if invocation.verbose:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, OSError) and error.strerror is not None:
        _complain(f"{_place(error)}: {error.strerror}")
        return 1
    _complain(
        f"{type(error).__name__}: {error}",
        "run it again with -v and report what it prints: this is a bug of Penstock; please report",
    )
    return 1


def _place(error: OSError) -> str:
    """What the system refused: a file, or what was to be printed."""
    if error.filename is not None:
        return os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
    if error.errno in _NOT_WRITTEN:  # of a file it would be an error of penstock.files
        _abandon_stdout()
        return "stdout cannot be written"
    return "the system refused"


def _in_flags(remedy: str) -> str:
    """A remedy that names arguments of the API (``gpu_memory="2GiB"``), in flags."""
    if remedy.isidentifier():  # a setting that was meant
        return remedy

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        return " ".join(filter(None, ("--" + name.replace("_", "-"), value)))

    return re.sub(
        r'\b(gpu_memory|host_memory|allow_oversubscription)\b(?:="([^"]*)"|=True)?', flag, remedy
    )


def _is_out_of_memory(error: Exception) -> bool:
    """Whether host memory ran out, or torch said that the GPU's did."""
    torch: Any = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    # torch has no class of its own for host memory.
    on_host = isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)
    return on_host or isinstance(error, kinds)


def _complain(what: str, remedy: str | None = None) -> None:
    """Print an error as one line, and its remedy as another."""
    click.echo(f"error: {one_line(what)}", err=True)
    if remedy:
        click.echo(f"  try: {remedy}", err=True)


def _abandon_stdout() -> None:
    """Nobody takes our output: keep the interpreter from complaining when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Terminated(BaseException):
    """SIGTERM came."""


def _terminate(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # what is being cleaned up takes its time
    raise _Terminated


def _open_standard_streams() -> None:
    """Put something in the place of standard streams that are closed.

    A file that is opened later would become one of them, and get what is printed. What is put
    there takes nothing, so that printing fails as on a full disk; a program that this process
    becomes finds the stream closed, as it was.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            mode = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            os.open(os.devnull, mode | os.O_CLOEXEC)  # the lowest number that is free: this one
            stream = open(number, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


class _Told(io.FileIO):
    """Stderr, which may be a log on a full disk: what it does not take is no reason to end."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return len(data)


def run() -> NoReturn:
    """Run the command line as a process."""
    _open_standard_streams()
    # A locale may lack letters that names and texts have.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Told(2, "w", closefd=False)),
        encoding=sys.stderr.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
    signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            code = main()
        except KeyboardInterrupt:  # once more, while the first was told
            code = INTERRUPTED
        # What is left is Python's own end, where one would only be complained about.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit(code)
    except _Terminated:
        _complain("terminated")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(128 + signal.SIGTERM)
