# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint consists of: the name, size and SHA-256 of each of its files.

It is written last and read first, so that whatever happened to a checkpoint since (a copy that was
cut off, a bit that flipped, a file of another) is known by name before any of it is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.errors import FailedError
from penstock.files import read_json, write_whole
from penstock.units import MIB

MANIFEST = "manifest.json"
FORMAT = 1
_PIECE = 4 * MIB
_THREADS = 4


def write_manifest(folder: Path) -> None:
    """List the files that are in a folder.

    Raises:
        FailedError: If the list cannot be written.
        OSError: If a file cannot be read.
    """
    names = _names(folder)
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": digest}
        for name, digest in zip(names, _digests(folder, names), strict=True)
    }
    text = json.dumps({"format": FORMAT, "files": files}, indent=1) + "\n"
    write_whole("--checkpoint", str(folder / MANIFEST), text)


def check_manifest(folder: Path) -> None:
    """Hold a folder against its list: no file missing, shorter, changed or of somebody else.

    Raises:
        FailedError: With the name of the first file that differs, and how.
    """
    listed = _listed(folder)
    there = set(_names(folder))
    for name in listed:
        if name not in there:
            raise _damaged(folder, name, "is missing")
    for name in sorted(there - listed.keys()):
        raise _damaged(folder, name, "is none of its files")
    try:
        for name, (size, _) in listed.items():
            found = (folder / name).stat().st_size
            if found != size:
                raise _damaged(folder, name, f"has {found:,} of {size:,} bytes")
        for name, digest in zip(listed, _digests(folder, listed), strict=True):
            if digest != listed[name][1]:
                raise _damaged(folder, name, "was changed: its SHA-256 is another")
    except OSError as error:
        raise _damaged(folder, str(error.filename), f"cannot be read: {error.strerror}") from error


def _listed(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and digest by name."""
    if not (folder / MANIFEST).is_file():
        raise _damaged(folder, MANIFEST, "is missing")
    document: Any = read_json(folder / MANIFEST, remedy="another folder")
    try:
        if document["format"] != FORMAT:
            raise _damaged(folder, MANIFEST, f"is of format {document['format']}, not {FORMAT}")
        return {
            str(name): (int(entry["bytes"]), str(entry["sha256"]))
            for name, entry in document["files"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(folder, MANIFEST, "is no list of files") from error


def _names(folder: Path) -> list[str]:
    """Names of all files below a folder but the list itself."""
    found = (path for path in folder.rglob("*") if not path.is_dir())
    names = (path.relative_to(folder).as_posix() for path in found)
    return sorted(name for name in names if name != MANIFEST)


def _digests(folder: Path, names: Iterable[str]) -> list[str]:
    with ThreadPoolExecutor(_THREADS) as threads:  # hashing releases the interpreter
        return list(threads.map(lambda name: _digest(folder / name), names))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _damaged(folder: Path, name: str, how: str) -> FailedError:
    return FailedError(f"{folder} is no whole checkpoint: {name} {how}")
