# SPDX-License-Identifier: Apache-2.0
"""Recordings of ``penstock run --record``: all that a program did on one GPU.

A file is a header of 64 bytes and records of 24, little-endian (work_trace.hpp).
What a record's `number`, `at` and `value` are goes by its `op`:

============  =====================  ===========  ==========================
op            number                 at           value
============  =====================  ===========  ==========================
OP_ALLOCATE   the block              nanoseconds  bytes
OP_FREE       the block              nanoseconds  0
OP_WORK       touches that follow    nanoseconds  function + (stream << 32)
OP_TOUCH      the block              offset       bytes from there
OP_PIN        the block              nanoseconds  0
OP_UNPIN      the block              nanoseconds  0
============  =====================  ===========  ==========================
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import FailedError, OutOfMemory
from penstock.host import available
from penstock.units import TIB, format_bytes

OP_ALLOCATE, OP_FREE, OP_WORK, OP_TOUCH, OP_PIN, OP_UNPIN = 1, 2, 3, 4, 5, 6
# `flags`: work that may touch more than was seen; a touch that may write.
OPAQUE, WRITTEN = 1, 1

MAGIC = b"PNSTWORK"
VERSION = 1
HEADER: np.dtype[Any] = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("header_bytes", "<u4"),
        ("record_bytes", "<u4"),
        ("device", "<i4"),
        ("process", "<u4"),
        ("reserved", "<u4"),
        ("budget", "<u8"),
        ("device_bytes", "<u8"),
        ("unix_ns", "<u8"),
        ("more", "<u8"),
    ]
)
RECORD: np.dtype[Any] = np.dtype(
    [
        ("op", "u1"),
        ("flags", "u1"),
        ("kind", "<u2"),
        ("number", "<u4"),
        ("at", "<u8"),
        ("value", "<u8"),
    ]
)
# Memory of a GPU, or a budget: a simulation has books of every page of it.
MOST_BYTES = 4 * TIB
# What a simulation takes, in sizes of the recording.
_TIMES = 4
REMEDY = "penstock run --record FILE -- PROGRAM"
# What the files begin with that `penstock replay` reads.
_ALLOCATIONS = (b"PK", b"\x80")


@dataclass(frozen=True, eq=False)
class WorkTrace:
    """What a program did on one GPU.

    Attributes:
        name: The file.
        budget_bytes: Device memory that the program ran under.
        device_bytes: Of the whole GPU.
        records: Of type `RECORD`, shape (records,), contiguous.
    """

    name: str
    budget_bytes: int
    device_bytes: int
    records: npt.NDArray[np.void]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def pieces(self) -> int:
        """How much work was given to the GPU."""
        return int(np.count_nonzero(self.records["op"] == OP_WORK))


def read_work(path: str | Path) -> WorkTrace:
    """Read a recording.

    What the end of the program cut off, in the middle of a record or of a piece of work, is left
    out. Whether the events make sense together is found out by whoever simulates them.

    Raises:
        FailedError: If there is no such file, or no work in it.
    """
    name = str(path)
    try:
        with open(path, "rb") as stream:
            header = _header(name, stream.read(HEADER.itemsize))
            size = os.fstat(stream.fileno()).st_size - int(header["header_bytes"])
            _check_memory(name, size)
            stream.seek(int(header["header_bytes"]))
            records = np.fromfile(stream, RECORD, count=max(size, 0) // RECORD.itemsize)
    except OSError as error:
        raise FailedError(
            f"{name} cannot be read: {error.strerror or error}", remedy="a file that is there"
        ) from error
    records = _whole(records)
    if not np.any(records["op"] == OP_WORK):
        raise FailedError(f"{name} holds no work", remedy="a program that uses the GPU for longer")
    return WorkTrace(
        name,
        budget_bytes=int(header["budget"]),
        device_bytes=int(header["device_bytes"]),
        records=records,
    )


def _header(name: str, text: bytes) -> np.void:
    """The header, if this version can read what follows."""
    if text.startswith(_ALLOCATIONS):
        raise FailedError(
            f"{name} is a trace of allocations: it does not say what uses them", remedy=REMEDY
        )
    if not text.startswith(MAGIC):
        raise FailedError(f"{name} is not the recording of a program", remedy=REMEDY)
    if len(text) < HEADER.itemsize:
        raise FailedError(f"{name} ends within its header", remedy=REMEDY)
    header: np.void = np.frombuffer(text, HEADER)[0]
    version, size = int(header["version"]), int(header["record_bytes"])
    if version != VERSION or size != RECORD.itemsize:
        raise FailedError(
            f"{name} is of version {version} with records of {size} bytes; this reads version "
            f"{VERSION} with {RECORD.itemsize}",
            remedy="the Penstock that recorded it",
        )
    if int(header["header_bytes"]) < HEADER.itemsize:
        raise FailedError(f"{name} has a header of {header['header_bytes']} bytes", remedy=REMEDY)
    for field in ("budget", "device_bytes"):
        if int(header[field]) > MOST_BYTES:
            raise FailedError(
                f"{name} says that its GPU has {format_bytes(int(header[field]))}", remedy=REMEDY
            )
    return header


def _check_memory(name: str, size: int) -> None:
    """Refuse what the host cannot hold: the records, and what a simulation makes of them."""
    room = available()
    if room is not None and _TIMES * size > room:
        raise OutOfMemory(
            f"{name} has {format_bytes(size)}: a simulation takes {format_bytes(_TIMES * size)} of "
            f"host memory, and {format_bytes(room)} are available",
            remedy="a recording of a shorter time",
            needed_bytes=_TIMES * size,
            budget_bytes=room,
        )


def _whole(records: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The records without a last piece of work whose touches are not all there."""
    tail = len(records)
    while tail > 0 and records["op"][tail - 1] == OP_TOUCH:
        tail -= 1
    last = tail - 1
    if last >= 0 and records["op"][last] == OP_WORK:
        touches = len(records) - tail
        if int(records["number"][last]) > touches:
            return records[:last]
    return records
