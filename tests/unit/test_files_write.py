# SPDX-License-Identifier: Apache-2.0
"""Files that are written: whole or not at all, whatever fails, and never over what they are not."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fault_tally import tell_faults

from penstock.errors import FailedError
from penstock.files import check_place, discard, publish, write, write_whole

NEW, OLD = "new\n" * 5000, "old\n"
CALLS = ("open", "write", "fsync", "link", "replace", "fchmod")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="making a device takes root")


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir()}


def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole("--json", str(tmp_path / "a"), NEW)
    finally:
        os.umask(before)
    assert (tmp_path / "a").read_text() == NEW
    assert modes(tmp_path) == {"a": 0o640}


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o4750])
def test_a_file_keeps_its_mode(mode, tmp_path):
    path = tmp_path / "a"
    path.write_text(OLD)
    path.chmod(mode)
    write_whole("--json", str(path), NEW)
    assert path.read_text() == NEW
    assert modes(tmp_path) == {"a": mode}


@AS_ROOT
def test_a_file_keeps_its_owner(tmp_path):
    path = tmp_path / "a"
    path.write_text(OLD)
    os.chown(path, 65534, 65533)
    write_whole("--json", str(path), NEW)
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65533)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_leads_to_the_new_content(there, tmp_path):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    if there:
        target.write_text(OLD)
    (tmp_path / "link").symlink_to("folder/target")
    check_place("--json", str(tmp_path / "link"))
    write_whole("--json", str(tmp_path / "link"), NEW)
    assert os.readlink(tmp_path / "link") == "folder/target"
    assert target.read_text() == NEW
    assert sorted(os.listdir(tmp_path)) == ["folder", "link"]


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    check_place("--json", str(tmp_path / "pipe"))
    write_whole("--json", str(tmp_path / "pipe"), NEW)
    reader.join(30)
    assert got == [NEW]
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)


@AS_ROOT
def test_a_device_stays_a_device_and_a_disk_is_refused(tmp_path):
    null, disk = tmp_path / "null", tmp_path / "disk"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(disk, 0o666 | stat.S_IFBLK, os.makedev(7, 250))
    except PermissionError:
        pytest.skip("no devices may be made here")
    write_whole("--json", str(null), NEW)
    assert stat.S_ISCHR(null.lstat().st_mode)
    with pytest.raises(FailedError, match="it is a disk"):
        check_place("--json", str(disk))


def test_stdout_that_is_a_file_gets_what_is_written_to_its_name(tmp_path):
    code = (
        "from penstock.files import write_whole\n"
        "print('before')\n"
        "write_whole('--json', '/dev/stdout', 'result\\n')\n"
        "print('after')\n"
    )
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == "before\nresult\nafter\n"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("folder", "it is a folder"),
        ("missing/a", "cannot be written: there is no folder .*/missing; "),
        ("new/", "cannot be written: its name is that of a folder"),
        ("x" * 300, "File name too long; try: a shorter name"),
        ("\ud800", "cannot be written"),
        ("a\0b", "cannot be written"),
        ("read-only", "it is read-only"),
        ("round", "Too many levels"),
        ("read-only/a", "Not a directory"),
    ],
)
def test_places_that_are_refused_before_the_work(place, said, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "read-only").write_text(OLD)
    (tmp_path / "read-only").chmod(0o444)
    (tmp_path / "round").symlink_to("round")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(FailedError, match=said) as caught:
        check_place("--json", f"{tmp_path}/{place}")
    assert len(str(caught.value)) < 400
    assert sorted(os.listdir(tmp_path)) == before


def test_a_file_without_a_name_is_refused():
    with pytest.raises(FailedError, match="--json: a file without a name"):
        check_place("--json", "")


def test_the_remedy_goes_by_what_the_system_says(tmp_path, monkeypatch):
    with pytest.raises(FailedError, match="try: room on that disk"):
        write_whole("--json", "/dev/full", NEW)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(FailedError, match="File too large; try: a higher limit"):
            write_whole("--json", str(tmp_path / "large"), NEW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for whom is not root
    with pytest.raises(FailedError, match="its folder is read-only; try: a folder that is yours"):
        check_place("--json", str(tmp_path / "a"))


def test_a_folder_that_was_removed_is_refused(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FailedError, match="No such file"):
        check_place("--json", "a.json")
    with pytest.raises(FailedError, match="No such file"):
        write_whole("--json", "a.json", NEW)


class Failing:
    """The module os, of which one call fails."""

    def __init__(self, at: int, error: int) -> None:
        self.at, self.error, self.seen = at, error, 0

    def __getattr__(self, name):
        own = getattr(os, name)
        if name not in CALLS:
            return own

        def call(*arguments, **options):
            self.seen += 1
            if self.seen == self.at:
                raise OSError(self.error, os.strerror(self.error))
            return own(*arguments, **options)

        return call


@pytest.mark.parametrize("nameless", [True, False])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_every_call_may_fail(there, error, nameless, tmp_path, monkeypatch):
    """What is there is the old content or the new one, and nothing beside it."""
    path = tmp_path / "a"
    at = refused = 0
    while True:
        at += 1
        path.unlink(missing_ok=True)
        if there:
            path.write_text(OLD)
        failing = Failing(at, error)
        if not nameless:
            failing.O_TMPFILE = None
        monkeypatch.setattr(write, "os", failing)
        try:
            write_whole("--json", str(path), NEW)
        except FailedError as caught:
            refused += 1
            assert os.strerror(error) in str(caught)
        monkeypatch.undo()
        found = path.read_text() if path.exists() else None
        assert found in (NEW, OLD if there else None)
        assert os.listdir(tmp_path) in (["a"], [])
        if failing.seen < at:
            break
    assert found == NEW
    assert refused >= 5
    tell_faults("files that are written", "system calls, once", at - 1)


def test_a_kill_at_any_moment_leaves_one_content_whole(tmp_path):
    code = (
        "import sys\n"
        "from penstock.files import write_whole\n"
        "while True:\n"
        "    for letter in 'ab':\n"
        "        write_whole('--json', sys.argv[1], letter * 3_000_000)\n"
        "    print(flush=True)\n"
    )
    path = tmp_path / "a"
    for number in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        )
        child.stdout.readline()
        threading.Event().wait(0.005 * number)
        child.kill()
        child.communicate()
        content = path.read_text()
        assert len(content) == 3_000_000
        assert content == content[0] * len(content)


def test_a_folder_gets_its_name_when_it_is_whole(tmp_path):
    partial = tmp_path / ".partial"
    partial.mkdir()
    (partial / "a").write_text(NEW)
    publish(partial, tmp_path / "whole")
    assert (tmp_path / "whole" / "a").read_text() == NEW
    assert os.listdir(tmp_path) == ["whole"]


def test_a_folder_loses_its_name_before_its_content(tmp_path, monkeypatch):
    folder = tmp_path / "step"
    folder.mkdir()
    (folder / "a").write_text(NEW)
    with monkeypatch.context() as patch:
        patch.setattr(write.shutil, "rmtree", lambda *_: (_ for _ in ()).throw(OSError(5, "EIO")))
        with pytest.raises(OSError, match="EIO"):
            discard(folder)
    assert os.listdir(tmp_path) == [".removed-step"]
    folder.mkdir()
    discard(folder)  # and a later one takes what is left with it
    assert os.listdir(tmp_path) == []
