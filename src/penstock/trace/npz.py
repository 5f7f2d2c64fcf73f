# SPDX-License-Identifier: Apache-2.0
"""Event arrays in numpy's .npz, compressed or not."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np

from penstock.errors import FailedError

from .events import FIELDS, REMEDY, Trace, make_trace

# Whatever a broken file makes the readers below us raise.
_BROKEN = (
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    ValueError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz(name: str, stream: BinaryIO) -> Trace:
    """The trace in an .npz.

    Args:
        name: What to call it.
        stream: The file, at its beginning.

    Raises:
        FailedError: If it is cut off or broken, or lacks an array.
    """
    try:
        arrays = _load(stream)
    except _BROKEN as error:
        raise FailedError(
            f"{name} is cut off or broken: {error}", remedy="the whole file"
        ) from error
    missing = [field for field in FIELDS if field not in arrays]
    if missing:
        raise FailedError(f"{name} has no array {', '.join(missing)}", remedy=REMEDY)
    return make_trace(name, arrays)


def _load(stream: BinaryIO) -> dict[str, Any]:
    """The arrays of our fields that are there; no object arrays, which could run code."""
    with np.load(stream, allow_pickle=False) as file:
        return {field: file[field] for field in FIELDS if field in file.files}
