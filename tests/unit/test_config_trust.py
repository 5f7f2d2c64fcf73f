# SPDX-License-Identifier: Apache-2.0
"""Whose configuration counts: that of the user and of root, where nobody else can write it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from penstock.config import resolve
from penstock.errors import FailedError

OTHER = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away takes root")
TEXT = 'safety = "strict"\n'


def look(folder):
    found = resolve(environ={}, folder=folder)
    return found.settings.safety, found.warnings


@pytest.fixture
def shared(tmp_path):
    """A folder with a configuration, and one below where the user works."""
    (tmp_path / "shared" / "mine").mkdir(parents=True)
    (tmp_path / "shared" / "penstock.toml").write_text(TEXT)
    assert look(tmp_path / "shared" / "mine") == ("strict", ())
    return tmp_path / "shared"


def ignored(shared, why):
    safety, warnings = look(shared / "mine")
    assert safety == "normal"
    assert warnings == (f"{shared}/penstock.toml is ignored: {why}",)


def test_a_file_that_everybody_may_write(shared):
    (shared / "penstock.toml").chmod(0o666)
    ignored(shared, "everybody may write to it")


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_that_everybody_may_write(mode, shared):
    shared.chmod(mode)
    ignored(shared, "everybody may write to its folder")


def test_a_group_of_ones_own_is_common(shared):
    shared.chmod(0o775)
    (shared / "penstock.toml").chmod(0o664)
    assert look(shared / "mine") == ("strict", ())


@AS_ROOT
@pytest.mark.parametrize(("name", "what"), [("penstock.toml", "it"), (".", "its folder")])
def test_what_belongs_to_somebody_else(name, what, shared):
    os.chown(shared / name, OTHER, OTHER)
    ignored(shared, f"{what} belongs to user {OTHER}, this is user 0")


@AS_ROOT
def test_a_link_of_somebody_else_to_a_file_of_mine(shared, tmp_path):
    (tmp_path / "target").write_text(TEXT)
    (shared / "penstock.toml").unlink()
    (shared / "penstock.toml").symlink_to(tmp_path / "target")
    assert look(shared / "mine") == ("strict", ())
    os.chown(shared / "penstock.toml", OTHER, OTHER, follow_symlinks=False)
    ignored(shared, f"it belongs to user {OTHER}, this is user 0")


@AS_ROOT
def test_a_link_of_mine_to_a_file_of_somebody_else(shared, tmp_path):
    (tmp_path / "target").write_text(TEXT)
    os.chown(tmp_path / "target", OTHER, OTHER)
    (shared / "penstock.toml").unlink()
    (shared / "penstock.toml").symlink_to(tmp_path / "target")
    ignored(shared, f"it belongs to user {OTHER}, this is user 0")


@AS_ROOT
def test_roots_own_counts_for_others():
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name)
        shared.chmod(0o755)
        (shared / "mine").mkdir()
        (shared / "penstock.toml").write_text(TEXT)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setegid(OTHER)
                os.seteuid(OTHER)
                code = 0 if look(shared / "mine") == ("strict", ()) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_ignored_does_not_end_the_search(shared, tmp_path):
    (shared / "penstock.toml").chmod(0o666)
    (tmp_path / "penstock.toml").write_text('safety = "fast"\n')
    safety, warnings = look(shared / "mine")
    assert (safety, len(warnings)) == ("fast", 1)


def test_a_project_of_others_is_mentioned_only_where_it_has_options(shared):
    (shared / "penstock.toml").unlink()
    (shared / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (shared / "pyproject.toml").chmod(0o666)
    assert look(shared / "mine") == ("normal", ())
    (shared / "pyproject.toml").write_text("[tool.penstock]\nsafety = 'fast'\n")
    assert look(shared / "mine")[1] == (
        f"{shared}/pyproject.toml is ignored: everybody may write to it",
    )


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_ordinary_file(make, shared):
    (shared / "penstock.toml").unlink()
    make(shared / "penstock.toml")
    (shared / "penstock.toml").chmod(0o700)
    ignored(shared, "it is no ordinary file")


def test_a_link_that_leads_nowhere(shared):
    (shared / "penstock.toml").unlink()
    (shared / "penstock.toml").symlink_to("nowhere")
    ignored(shared, "it cannot be looked at: No such file or directory")


def test_a_byte_order_mark_is_no_option(shared):
    (shared / "penstock.toml").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert look(shared / "mine") == ("strict", ())


@pytest.mark.parametrize(
    "content",
    [b"tool = 3", b"[tool]\npenstock = 3"],
)
def test_tables_that_are_none(content, tmp_path):
    (tmp_path / "pyproject.toml").write_bytes(content)
    with pytest.raises(FailedError, match="is not a table"):
        look(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"safety = " + b"[" * 100_000,
        b"safety = " + b"{a=" * 100_000,
        b"a" + b".a" * 100_000 + b" = 1",
        b"safety = " + b"9" * 100_000,
        b"#" * (2 << 20),
        b"\xff",
    ],
)
def test_files_that_ask_for_too_much(content, tmp_path):
    (tmp_path / "penstock.toml").write_bytes(content)
    with pytest.raises(FailedError) as caught:
        look(tmp_path)
    assert len(str(caught.value)) < 1000
