# SPDX-License-Identifier: Apache-2.0
"""libpenstock.so: where it lies, its failures as exceptions."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from pathlib import Path

from penstock.errors import EnvironmentProblem, FailedError, OutOfMemory, PenstockError, UsageError

from .api import INTERFACE

_INVALID, _DEVICE_MEMORY = 1, 2
_REINSTALL = "reinstall penstock (pip install --force-reinstall penstock)"
_ERRORS: dict[int, type[PenstockError]] = {
    _INVALID: UsageError,
    _DEVICE_MEMORY: OutOfMemory,
    3: OutOfMemory,
    4: EnvironmentProblem,
    5: EnvironmentProblem,
}


def library_path() -> Path:
    """Where libpenstock.so lies: in the package, or where PENSTOCK_LIBRARY points."""
    named = os.environ.get("PENSTOCK_LIBRARY")
    return Path(named) if named else Path(__file__).parent.parent / "lib" / "libpenstock.so"


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The loaded library, with the signatures of its headers.

    Raises:
        EnvironmentProblem: If it is not there, cannot be loaded, or is another one.
    """
    try:
        lib = ctypes.CDLL(str(library_path()))
    except OSError as error:
        raise EnvironmentProblem(
            f"the native library does not load: {error}",
            remedy=_remedy(),
        ) from error
    for name, (result, arguments) in INTERFACE.functions.items():
        try:
            function = getattr(lib, name)
        except AttributeError as error:
            raise EnvironmentProblem(
                f"the native library is not the one expected: {error}", remedy=_remedy()
            ) from error
        function.restype, function.argtypes = result, arguments
    return lib


def _remedy() -> str:
    return "unset PENSTOCK_LIBRARY" if os.environ.get("PENSTOCK_LIBRARY") else _REINSTALL


def check(status: int) -> None:
    """Raise what a penstock_status stands for; 0 is silent."""
    if status == 0:
        return
    text = library().penstock_last_error().decode(errors="replace")
    # Device memory that a budget keeps back; without the word it is the device that has no more.
    of_budget = status in (_INVALID, _DEVICE_MEMORY) and "budget" in text
    remedy = "a larger gpu_memory" if of_budget else None
    raise _ERRORS.get(status, FailedError)(text, remedy=remedy)
