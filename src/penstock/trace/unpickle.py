# SPDX-License-Identifier: Apache-2.0
"""Unpickling plain data alone: numbers, texts, lists and dictionaries.

A pickle can name any function and have it called; this reader refuses every name, so that a
snapshot from elsewhere can do no more than be wrong.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO, NoReturn

from penstock.errors import FailedError


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
