# SPDX-License-Identifier: Apache-2.0
"""Results as one HTML page: table, why a step takes as long as it does, charts.

The page needs nothing but itself, and is light or dark as the reader's system is. The JSON that it
was made from is in it. What is text in a result is text in the page. Pure but for `is_page`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.files import beginning

from .columns import tabulate
from .result import Result
from .why import why

# Within so many bytes a page says whose it is, and how.
_HEAD = 512
MARK = '<meta name="generator" content="penstock">'


def page(results: Sequence[Result], *, title: str, command: str, data: Any) -> str:
    """The whole page.

    Args:
        results: At least one, in the order of the table.
        title: The heading.
        command: What ran, or made the page.
        data: The JSON to keep in the page.
    """
    import jinja2

    from . import charts

    done = [(number, each) for number, each in enumerate(results) if each.failure is None]
    sections = charts.sections(done)
    plots = [plot for *_, plots in sections for plot in plots]
    scripts, found = charts.embedded(plots) if plots else ("", ())
    elements = iter(found)
    table = tabulate(results)
    rows = [
        {"result": result, "cells": cells, "setting": setting, "why": why(result)}
        | {"colour": charts.colour_of(number)}
        for number, (result, cells, setting) in enumerate(
            zip(results, table.cells, table.settings, strict=True)
        )
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("penstock.report"), autoescape=True
    )
    return environment.get_template("page.html").render(
        title=title,
        command=command,
        table=table,
        rows=rows,
        across=max(1, len(table.headings)),
        sections=[
            (title, note, [next(elements) for _ in plots]) for title, note, plots in sections
        ],
        data=json.dumps(data).replace("<", "\\u003c"),
        scripts=scripts,
    )


def is_page(path: Path) -> bool:
    """Whether a file begins as the pages do that `page` makes."""
    return MARK.encode() in beginning(path, _HEAD)
