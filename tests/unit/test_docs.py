# SPDX-License-Identifier: Apache-2.0
"""Pages that are read before anything is built: short, without a dead link or a block untested."""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LANGUAGES = {"python", "sh", "console", "toml", "text"}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is_so_that_it_is_run(page):
    """A fence without a language would be passed over in silence."""
    if page.parent == ROOT and page.name != "README.md":
        return
    opening = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)[::2]
    assert set(opening) <= LANGUAGES


def test_what_the_reference_names_is_there():
    """A member that is not there is left out of the page without a word."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    for part in page.split("\n::: ")[1:]:
        found = pkgutil.resolve_name(part.split()[0])
        members = re.search(r"members: \[(.*)\]", part)
        for name in members[1].split(", ") if members else ():
            assert hasattr(found, name) or f"self.{name} = " in "".join(
                inspect.getsource(each)
                for each in found.__mro__
                if each.__module__.startswith("penstock.")
            ), name
