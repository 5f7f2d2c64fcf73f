# SPDX-License-Identifier: Apache-2.0
"""Reading a file that may be anybody's: no more of it than is of use.

Invariant: no more than the limit is ever in memory, whatever the file says its size is and also
where it has no end, as a pipe or a device may have none. Any thread.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from penstock.errors import FailedError
from penstock.units import MIB, format_bytes

# Of a document in JSON: a result of a million steps. In memory it may be twenty times as large.
MOST_JSON = 64 * MIB
_PIECE = MIB


def beginning(path: Path, count: int) -> bytes:
    """The first bytes of a file; none of one that cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(count)
    except OSError:
        return b""


def read_bytes(path: str | Path, most: int, *, remedy: str) -> bytes:
    """All that a file holds.

    Args:
        path: The file.
        most: Bytes that it may have.
        remedy: What errors advise.

    Raises:
        FailedError: If it cannot be read, or has more.
    """
    content = bytearray()
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            while size <= most and len(content) <= most and (piece := stream.read(_PIECE)):
                content += piece
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise FailedError(f"{path} cannot be read: {said}", remedy=remedy) from error
    if max(size, len(content)) > most:
        had = format_bytes(size) if size > most else "no end"
        raise FailedError(f"{path} has {had}, more than {format_bytes(most)}", remedy=remedy)
    return bytes(content)


def read_text(path: str | Path, most: int, *, remedy: str) -> str:
    """The same as text in UTF-8, without a byte order mark.

    Raises:
        FailedError: Likewise, or if it is not UTF-8.
    """
    content = read_bytes(path, most, remedy=remedy)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FailedError(f"{path} is not UTF-8: {error}", remedy=remedy) from error


def read_json(path: str | Path, *, remedy: str) -> Any:
    """What a JSON file holds; numbers that JSON has no word for are None.

    Raises:
        FailedError: As `read_bytes`, or if it is not JSON.
    """
    content = read_bytes(path, MOST_JSON, remedy=remedy)
    try:
        return json.loads(content.decode("utf-8-sig"), parse_constant=lambda word: None)
    except (ValueError, RecursionError) as error:
        raise FailedError(f"{path} is not JSON: {error}", remedy=remedy) from error
