# SPDX-License-Identifier: Apache-2.0
"""Unpickling plain data alone: numbers, texts, lists and dictionaries.

A pickle can name any function and have it called; this reader refuses every name. It can also ask
for any amount of memory in a few bytes; so the process may not grow by more than a snapshot of that
size can need while one is read. A snapshot from elsewhere can do no more than be wrong.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from penstock.errors import FailedError
from penstock.units import GIB

# What a snapshot takes in memory: so many times its file, and this.
_TIMES, _MORE = 64, GIB


class _Refused(Exception):
    """The pickle asks for something that is not plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(f"it asks for {module}.{name}")

    def persistent_load(self, _: object) -> NoReturn:
        raise _Refused("it refers to data outside")


def load_plain(name: str, stream: BinaryIO) -> Any:
    """The plain data in a pickle.

    Args:
        name: What the message calls the file.
        stream: The file, at its beginning.

    Raises:
        FailedError: If it is cut off or broken, or holds anything but plain data.
    """
    try:
        with _growing_by(_MORE + _TIMES * os.fstat(stream.fileno()).st_size):
            return _PlainUnpickler(stream).load()
    except _Refused as error:
        raise FailedError(
            f"{name} is not a memory snapshot: {error}",
            remedy="what torch.cuda.memory._dump_snapshot() wrote",
        ) from error
    except OSError:
        raise
    except Exception as error:  # a broken pickle raises nearly anything, MemoryError too
        raise FailedError(
            f"{name} is cut off or broken: {error}", remedy="the whole file"
        ) from error


@contextlib.contextmanager
def _growing_by(most: int) -> Iterator[None]:
    """Let the process's address space grow by no more; beyond that there is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + most
    if limit > 1 << 62 or (soft != resource.RLIM_INFINITY and soft < limit):
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
