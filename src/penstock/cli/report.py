# SPDX-License-Identifier: Apache-2.0
"""``penstock report``: results that verbs wrote with --json, side by side.

The files are read by `penstock.report.verbs`; this file names their results, and hands them on to a
table, a page and JSON.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from penstock.config import Settings
from penstock.errors import FailedError, UsageError
from penstock.files import write_whole
from penstock.report.columns import print_results
from penstock.report.fields import load
from penstock.report.page import is_page, page
from penstock.report.result import Result
from penstock.report.timeline import is_timeline, timeline
from penstock.report.verbs import results_of
from penstock.results import PROMISED, rows_of, with_head
from penstock.text import printable

from .common import Output, apart, check_apart, check_own, need_extra, verb


@dataclass(frozen=True)
class _Found:
    """A result, and the file that it is from."""

    file: Path
    result: Result


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--html", metavar="PAGE", help="Write one self-contained page with charts.")
@click.option("--trace", metavar="FILE", help="Write a timeline for ui.perfetto.dev.")
@verb(check_file=False)
def command(
    files: tuple[Path, ...],
    html: str | None,
    trace: str | None,
    settings: Settings,
    output: Output,
) -> None:
    """Show results of other verbs side by side.

    A FILE is what finetune, compare, gpt, replay or simulate wrote with --json.
    Needs neither a GPU nor torch.

    \b
    Examples:
      penstock gpt --gpu-memory 450MiB --json small.json
      penstock report small.json large.json --html page.html --trace timeline.json
    """  # noqa: D301
    files, output = apart(files, output, _is_result)
    if not files:
        raise UsageError("no file was given", remedy="penstock report FILE.json")
    output.check()
    if html is not None:
        need_extra("bokeh", "report")
        check_own("--html", html, is_page, "page of penstock", force=output.force)
    if trace is not None:
        check_own("--trace", trace, is_timeline, "timeline of penstock", force=output.force)
    check_apart({"--html": html, "--trace": trace, output.flag: output.json_file}, files)
    found = _read(files)
    document = _document(found)
    results = [each.result for each in found]
    if html is not None:
        title = results[0].name if len(results) == 1 else f"{len(results)} results, side by side"
        made_by = printable(shlex.join(["penstock", "report", *map(str, files)]))
        write_whole("--html", html, page(results, title=title, command=made_by, data=document))
    if trace is not None:
        write_whole("--trace", trace, timeline(results))
    output.emit(document, lambda: _print(results, {"page": html, "timeline": trace}))


def _is_result(path: Path) -> bool:
    """Whether a file is for this verb to read, or to refuse as that of an earlier version."""
    try:
        return any(row.get("verb") in (None, *PROMISED) for row in rows_of(load(path)))
    except FailedError:
        return False


def _read(files: Sequence[Path]) -> list[_Found]:
    """All results of all files, each with a name of its own.

    One result of a file is called as the file is; of several each has its name, after that of its
    file where there are more files.
    """
    stems = [printable(path.stem) for path in files]
    found = []
    for path, stem in zip(files, stems, strict=True):
        label = stem if stems.count(stem) == 1 else printable(str(path))
        results = results_of(load(path), name=label, place=str(path))
        for result in results:
            alone = len(files) == 1 or result.name == label
            name = result.name if alone else f"{label}: {result.name}"
            found.append(_Found(path, replace(result, name=name)))
    return found


def _document(found: Sequence[_Found]) -> dict[str, Any]:
    rows = []
    for each in found:
        row = asdict(each.result)
        name = row.pop("name")
        median = each.result.median_step_ms
        rows.append({"name": name, "file": str(each.file), **row, "median_step_ms": median})
    return with_head("report", {"results": rows})


def _print(results: Sequence[Result], written: Mapping[str, str | None]) -> None:
    print_results(results)
    lines = [f"{kind}: {name}" for kind, name in written.items() if name is not None]
    if lines:
        click.echo("\n" + "\n".join(lines))
