# SPDX-License-Identifier: Apache-2.0
"""Reading a trace from a file, by what is in it rather than by its name."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import FailedError

from .events import REMEDY, Trace
from .npz import read_npz
from .snapshot import read_snapshot
from .unpickle import load_plain

ZIP_MAGIC = b"PK"
PICKLE_MAGIC = b"\x80"  # of every protocol since the second


def read_traces(path: str | Path) -> list[Trace]:
    """The traces in a file: one of an .npz, one for each device with events of a snapshot.

    Args:
        path: The file; the names of the traces begin with it.

    Raises:
        FailedError: If there is no such file, or no trace in it.
    """
    name = str(path)
    try:
        with open(path, "rb") as stream:
            magic = stream.read(2)
            stream.seek(0)
            if magic.startswith(ZIP_MAGIC):
                return [read_npz(name, stream)]
            if magic.startswith(PICKLE_MAGIC):
                return read_snapshot(name, load_plain(name, stream))
    except OSError as error:
        raise FailedError(
            f"{name} cannot be read: {error.strerror or error}", remedy="a file that is there"
        ) from error
    raise FailedError(f"{name} is not a trace of allocations", remedy=REMEDY)
