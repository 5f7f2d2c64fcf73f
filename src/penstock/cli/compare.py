# SPDX-License-Identifier: Apache-2.0
"""``penstock compare``: the same work under several allocators or budgets, side by side.

The work is run by `penstock.finetune.compare`; this file turns flags into settings, and rows into a
table, a page and JSON.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import click

from penstock.config import Settings
from penstock.config.checks import check_known
from penstock.errors import EnvironmentProblem, FailedError, OutOfMemory, PenstockError, UsageError
from penstock.files import write_whole
from penstock.finetune.compare import document, run_all, settings_of
from penstock.finetune.request import ALLOCATORS
from penstock.report.columns import print_results
from penstock.report.page import is_page, page
from penstock.report.result import Result
from penstock.report.verbs import results_of
from penstock.text import printable
from penstock.units import parse_size

from .common import Output, check_apart, check_own, need_extra, verb
from .finetune import command as finetune

TITLE = "The same fine-tune, compared"
_KINDS = {kind.exit_code: kind for kind in (UsageError, EnvironmentProblem, OutOfMemory)}


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--allocators", metavar="LIST", help="Some of native, expandable, stitch.")
@click.option("--budgets", metavar="LIST", help="Sizes for --gpu-memory, such as 16GiB,12GiB.")
@click.option("--report", metavar="FILE", help="Write a self-contained HTML page.")
@click.argument("work", nargs=-1, type=click.UNPROCESSED)
@verb()
def command(
    settings: Settings,
    output: Output,
    allocators: str | None,
    budgets: str | None,
    report: str | None,
    work: tuple[str, ...],
) -> None:
    """Compare work under several allocators or budgets.

    WORK is `finetune` and its flags. Each setting runs in a process of its own.
    Without --allocators and --budgets it is run under all three allocators.

    \b
    Example:
      penstock compare finetune --model opt-1.3b --strategy LR --report page.html
    """  # noqa: D301
    flags = _flags(work)
    names, sizes = _listed(allocators), _listed(budgets)
    if not names and not sizes:
        names = ["native", "expandable", "stitch"]
    _check(flags, names, sizes)
    if report is not None:
        need_extra("bokeh", "report")
        check_own("--report", report, is_page, "page of penstock", force=output.force)
    check_apart({"--report": report, output.flag: output.json_file})
    stream = sys.stderr
    rows = run_all(flags, settings_of(names, sizes), stream=stream)
    result = document(flags, rows)
    results = results_of(result, name="", place="compare")
    written = None
    try:
        if report is not None:
            made = page(
                results,
                title=TITLE,
                command=printable(f"penstock {shlex.join(result['work'])}"),
                data=result,
            )
            write_whole("--report", report, made)
            written = report
    finally:
        output.emit(result, lambda: _print(results, written))
    if all(row.exit_code for row in rows):
        kind: type[PenstockError] = _KINDS.get(rows[0].exit_code, FailedError)
        raise kind(f"no setting succeeded; {rows[0].name}: {rows[0].error}")


def _flags(work: tuple[str, ...]) -> list[str]:
    """What follows the verb.

    Raises:
        UsageError: If it is another verb, or none.
    """
    if not work or work[0] != "finetune":
        given = f"'{work[0]}'" if work else "nothing"
        raise UsageError(
            f"{given} cannot be compared", remedy="penstock compare finetune --model tiny"
        )
    return list(work[1:])


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _check(flags: list[str], allocators: list[str], budgets: list[str]) -> None:
    """Refuse before the first process starts what all of them would refuse."""
    for name in allocators:
        check_known("--allocators", name, ALLOCATORS)
    for size in budgets:
        if not size.endswith("%"):
            parse_size(size, name="--budgets")
    for flag, values in (("--allocator", allocators), ("--gpu-memory", budgets)):
        if values and any(each.partition("=")[0] == flag for each in flags):
            raise UsageError(f"{flag} in the work is what is compared", remedy=f"without {flag}")
    finetune.make_context("finetune", list(flags), parent=click.get_current_context().parent)


def _print(results: Sequence[Result], report: str | None) -> None:
    print_results(results)
    if report is not None:
        click.echo(f"\nreport: {report}")
