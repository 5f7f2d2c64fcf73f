# SPDX-License-Identifier: Apache-2.0
"""Writing a file or a folder, whole or not at all.

Invariant: a reader, also one after a power cut, sees the old content or all of the new one. A file
keeps its mode, and its owner where we may say who that is; a link stays and leads to the new
content; a pipe or a character device is written to, not replaced. Whatever fails is a FailedError
of one line and leaves nothing behind: content without a name is the kernel's to clean up, even
after a kill. Any thread; of several writers of one file the last wins.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
from pathlib import Path

from penstock.errors import FailedError

_REMEDY = "a file in a folder that exists"
_OURS = "a folder that is yours to write to"
_REMEDIES = {
    errno.ENOSPC: "room on that disk",
    errno.EDQUOT: "room in your quota",
    errno.EFBIG: "a higher limit of a file's size, ulimit -f",
    errno.ENAMETOOLONG: "a shorter name",
} | dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _OURS)
_SPECIAL = {stat.S_IFDIR: "a folder", stat.S_IFBLK: "a disk", stat.S_IFSOCK: "a socket"}


def check_place(what: str, name: str) -> os.stat_result | None:
    """Refuse a place that a file cannot be written to before a long run, not after it.

    Args:
        what: What messages begin with, such as ``--json``.
        name: The file.

    Returns:
        What is there now; None where nothing is.

    Raises:
        FailedError: If it is a folder, a disk or read-only, or in a folder that is not there or
            not ours to write to.
    """
    if not name:
        raise FailedError(f"{what}: a file without a name cannot be written", remedy=_REMEDY)
    try:
        found = _status(name)
        folder = os.path.dirname(os.path.realpath(name))
    except (OSError, ValueError) as error:
        raise _failure(what, name, error) from error
    if found is None or stat.S_ISREG(found.st_mode):
        why, remedy = "", _REMEDY
        if name.endswith("/"):
            why = "its name is that of a folder"
        elif not os.path.isdir(folder):
            why = f"there is no folder {folder}"
        elif not os.access(folder, os.W_OK | os.X_OK):
            why, remedy = "its folder is read-only", _OURS
        if why:
            raise FailedError(f"{what}: {name} cannot be written: {why}", remedy=remedy)
    elif (kind := _SPECIAL.get(stat.S_IFMT(found.st_mode))) is not None:
        raise FailedError(f"{what}: {name} cannot be written: it is {kind}", remedy=_REMEDY)
    if found is not None and not (found.st_mode & 0o222 and os.access(name, os.W_OK)):
        raise FailedError(
            f"{what}: {name} cannot be written: it is read-only", remedy="another name, or chmod +w"
        )
    return found


def write_whole(what: str, name: str, content: str | bytes) -> None:
    """Write a file.

    Args:
        what: What messages begin with, such as ``--json``.
        name: The file.
        content: Text is written as UTF-8.

    Raises:
        FailedError: If it cannot be written; what was there before is there still.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        found = _status(name)
        if found is None or stat.S_ISREG(found.st_mode):
            standard = _standard_stream(found)
            if standard is not None:
                _write_all(standard, data)
            else:
                _replace(os.path.realpath(name), data, found)
        else:
            _write_through(name, data)
    except (OSError, ValueError) as error:
        raise _failure(what, name, error) from error


def publish(partial: Path, place: Path) -> None:
    """Give a whole folder its name, once all that is in it is on the disk.

    Raises:
        OSError: If that fails, or a folder of that name is there already.
    """
    for path in (*(each for each in partial.rglob("*") if each.is_file()), partial):
        _sync(str(path))
    os.rename(partial, place)
    _sync(str(place.parent))


def discard(folder: Path) -> None:
    """Remove a folder so that a kill half way leaves no part of it under its name.

    Raises:
        OSError: If that fails.
    """
    doomed = folder.with_name(f".removed-{folder.name}")
    if doomed.exists():
        shutil.rmtree(doomed)
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def _status(name: str) -> os.stat_result | None:
    """What a name leads to; None for nothing, also at the end of a link."""
    try:
        return os.stat(name)
    except FileNotFoundError:
        return None


def _standard_stream(found: os.stat_result | None) -> int | None:
    """The standard stream that a file is, such as /dev/stdout where that was sent to a file."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(OSError):
            if found is not None and os.path.samestat(found, os.fstat(number)):
                stream.flush()
                return number
    return None


def _write_through(name: str, data: bytes) -> None:
    """Into a pipe or a device, as a shell would."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _replace(target: str, data: bytes, old: os.stat_result | None) -> None:
    """Write beside the file, and give that its name once it is on the disk."""
    parent = os.path.dirname(target)
    folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    temporary: str | None = None
    try:
        descriptor, temporary = _create(parent, 0o666 if old is None else old.st_mode & 0o700)
        try:
            if old is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            _write_all(descriptor, data)
            os.fsync(descriptor)
            if temporary is None:
                temporary = _temporary_name(parent)
                source = f"/proc/self/fd/{descriptor}"
                # Without folders Python calls link(), which does not follow that name.
                os.link(source, temporary, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
        temporary = None
        os.fsync(folder)
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        os.close(folder)


def _create(parent: str, mode: int) -> tuple[int, str | None]:
    """A new file: without a name where the file system has such, else its name as well."""
    nameless = getattr(os, "O_TMPFILE", None)
    if nameless is not None and os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            return os.open(parent, nameless | os.O_WRONLY | os.O_CLOEXEC, mode), None
    name = _temporary_name(parent)
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), name


def _temporary_name(parent: str) -> str:
    return os.path.join(parent, f".penstock-{os.urandom(8).hex()}")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failure(what: str, name: str, error: OSError | ValueError) -> FailedError:
    """The error of one line, however long the name is."""
    shown = name if len(name) <= 100 else f"{name[:97]}..."
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    remedy = remedy_of(error, _REMEDY)
    return FailedError(f"{what}: {shown} cannot be written: {said}", remedy=remedy)


def remedy_of(error: Exception, otherwise: str) -> str:
    """What helps against an error in writing; libraries in Rust have its number in their words."""
    number = getattr(error, "errno", None)
    if number is None and (told := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(told[1])
    return _REMEDIES.get(number or 0, otherwise)
