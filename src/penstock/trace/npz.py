# SPDX-License-Identifier: Apache-2.0
"""Event arrays in numpy's .npz, compressed or not.

Invariant: sizes are taken from what the file declares and checked before anything is unpacked, so
that a small file cannot take more memory than `MOST_EVENTS` events do. No array of objects is read,
which could run code.
"""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from penstock.errors import FailedError

from .events import FIELDS, MOST_EVENTS, REMEDY, Trace, make_trace

# Whatever a broken file makes the readers below us raise.
_BROKEN = (
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# Of the largest type that an array may have, and of its header.
_WIDEST, _HEADER = 8, 1 << 16


def read_npz(name: str, stream: BinaryIO) -> Trace:
    """The trace in an .npz.

    Args:
        name: What to call it.
        stream: The file, at its beginning.

    Raises:
        FailedError: If it is cut off or broken, lacks an array, or declares too many events.
    """
    try:
        arrays = _load(name, stream)
    except FailedError:
        raise
    except _BROKEN as error:
        raise FailedError(
            f"{name} is cut off or broken: {error}", remedy="the whole file"
        ) from error
    missing = [field for field in FIELDS if field not in arrays]
    if missing:
        raise FailedError(f"{name} has no array {', '.join(missing)}", remedy=REMEDY)
    return make_trace(name, arrays)


def _load(name: str, stream: BinaryIO) -> dict[str, npt.NDArray[Any]]:
    """The arrays of our fields that are there."""
    with zipfile.ZipFile(stream) as archive:
        members = {member.filename: member for member in archive.infolist()}
        found = {field: members.get(f"{field}.npy") for field in FIELDS}
        for field, member in found.items():
            if member is not None and member.file_size > MOST_EVENTS * _WIDEST + _HEADER:
                raise FailedError(
                    f"{name}: {field} has {member.file_size:,} bytes, more than those of "
                    f"{MOST_EVENTS:,} events",
                    remedy="a trace of a shorter time",
                )
        return {
            field: _array(archive, member) for field, member in found.items() if member is not None
        }


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """One array; no more is made room for than the archive says that there is."""
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"{member.filename} is of version {version}")
        shape, _, dtype = _HEADERS[version](stream)
        if dtype.hasobject or any(length < 0 for length in shape):
            raise ValueError(f"{member.filename} is an array of {dtype} of shape {shape}")
        size = math.prod(shape) * dtype.itemsize
        if size > member.file_size:
            raise EOFError(f"{member.filename} has {member.file_size:,} of {size:,} bytes")
        content = stream.read(size)
        if len(content) != size or stream.read(1):
            raise EOFError(f"{member.filename} has not the size that it declares")
    array: npt.NDArray[Any] = np.frombuffer(content, dtype).reshape(shape)
    return array
