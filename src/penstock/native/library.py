# SPDX-License-Identifier: Apache-2.0
"""libpenstock.so: where it lies, its signatures, its failures as exceptions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.errors import EnvironmentProblem, FailedError, OutOfMemory, PenstockError, UsageError

from .structs import (
    BudgetUse,
    DeviceInfo,
    DeviceOptions,
    LiveCounts,
    ManagedGroup,
    ManagedOptions,
    ManagedStats,
    Packing,
    PagerOptions,
    PagerStats,
    Piece,
    Range,
)

RECLAIM = CFUNCTYPE(None, c_void_p)
_DEVICE_MEMORY = 2
_ERRORS: dict[int, type[PenstockError]] = {
    1: UsageError,
    _DEVICE_MEMORY: OutOfMemory,
    3: OutOfMemory,
    4: EnvironmentProblem,
    5: EnvironmentProblem,
}

# Name of a function -> its result and arguments.
Signatures = Mapping[str, tuple[Any, list[Any]]]
_SIGNATURES: Signatures = {
    "penstock_version": (c_char_p, []),
    "penstock_last_error": (c_char_p, []),
    "penstock_open": (c_int32, [POINTER(DeviceOptions), POINTER(c_void_p)]),
    "penstock_close": (None, [c_void_p]),
    "penstock_get_info": (c_int32, [c_void_p, POINTER(DeviceInfo)]),
    "penstock_memory": (c_int32, [c_void_p, POINTER(c_uint64), POINTER(c_uint64)]),
    "penstock_share": (c_int32, [c_void_p, c_int32]),
    "penstock_live": (c_int32, [c_void_p, POINTER(LiveCounts)]),
    "penstock_driver_calls": (c_int64, [c_void_p]),
    "penstock_measure_link": (
        c_int32,
        [c_void_p, c_uint64, c_int32, POINTER(c_double), POINTER(c_double)],
    ),
    "penstock_pager_create": (c_int32, [c_void_p, POINTER(PagerOptions), POINTER(c_void_p)]),
    "penstock_pager_destroy": (None, [c_void_p]),
    "penstock_range_create": (c_int32, [c_void_p, c_uint64, c_uint32, POINTER(Range)]),
    "penstock_use_define": (c_int32, [c_void_p, POINTER(Piece), c_int32, POINTER(c_int32)]),
    "penstock_use_begin": (c_int32, [c_void_p, c_int32, c_uint64]),
    "penstock_use_end": (c_int32, [c_void_p, c_int32, c_uint64]),
    "penstock_iteration": (c_int32, [c_void_p, c_int64, c_uint64]),
    "penstock_fetch": (c_int32, [c_void_p, c_uint64, c_uint64]),
    "penstock_flush": (c_int32, [c_void_p, c_uint64, c_uint64]),
    "penstock_forget": (c_int32, [c_void_p, c_uint64, c_uint64]),
    "penstock_pack": (c_int32, [c_void_p, POINTER(Packing), c_int32]),
    "penstock_read": (c_int32, [c_void_p, c_uint64, c_uint64, c_void_p]),
    "penstock_verify": (c_int32, [c_void_p, POINTER(c_uint64)]),
    "penstock_unpack": (c_int32, [c_void_p, c_uint64, c_uint64, POINTER(c_void_p)]),
    "penstock_pager_resize": (c_int32, [c_void_p, c_uint64]),
    "penstock_pager_smallest": (c_uint64, [c_void_p]),
    "penstock_pager_get_stats": (c_int32, [c_void_p, POINTER(PagerStats)]),
    "penstock_budget_create": (c_int32, [c_uint64, POINTER(c_void_p)]),
    "penstock_budget_destroy": (None, [c_void_p]),
    "penstock_budget_set_limit": (c_int32, [c_void_p, c_uint64]),
    "penstock_budget_join": (c_int32, [c_void_p, c_void_p]),
    "penstock_budget_leave": (c_int32, [c_void_p, c_void_p]),
    "penstock_budget_take": (c_int32, [c_void_p, c_uint64]),
    "penstock_budget_put_back": (c_int32, [c_void_p, c_uint64]),
    "penstock_budget_make_room": (c_int32, [c_void_p, c_uint64, c_void_p]),
    "penstock_budget_get_use": (c_int32, [c_void_p, POINTER(BudgetUse)]),
    "penstock_budget_set_reclaim": (c_int32, [c_void_p, RECLAIM, c_void_p]),
    "penstock_torch_count_in": (c_int32, [c_int32, c_void_p]),
    "penstock_torch_watch_segments": (c_int32, []),
    "penstock_budget_new_peak": (c_int32, [c_void_p]),
    "penstock_managed_create": (
        c_int32,
        [c_void_p, POINTER(ManagedOptions), POINTER(ManagedGroup), c_int32, POINTER(c_void_p)],
    ),
    "penstock_managed_destroy": (None, [c_void_p]),
    "penstock_managed_begin": (c_int32, [c_void_p, c_int32, c_uint64]),
    "penstock_managed_end": (c_int32, [c_void_p, c_int32, c_uint64]),
    "penstock_managed_iteration": (c_int32, [c_void_p]),
    "penstock_managed_resize": (c_int32, [c_void_p, c_uint64]),
    "penstock_managed_smallest": (c_uint64, [c_void_p]),
    "penstock_managed_get_stats": (c_int32, [c_void_p, POINTER(ManagedStats)]),
}


def library_path() -> Path:
    """Where libpenstock.so lies: in the package, or where PENSTOCK_LIBRARY points."""
    named = os.environ.get("PENSTOCK_LIBRARY")
    return Path(named) if named else Path(__file__).parent.parent / "lib" / "libpenstock.so"


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The loaded library with its signatures set.

    Raises:
        EnvironmentProblem: If it is not there or cannot be loaded.
    """
    path = library_path()
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise EnvironmentProblem(
            f"the native library does not load: {error}",
            remedy="reinstall penstock (pip install --force-reinstall penstock)",
        ) from error
    _declare(lib, _SIGNATURES)
    return lib


def library_with(signatures: Signatures) -> ctypes.CDLL:
    """The library with these signatures too: those of a part that few processes use."""
    lib = library()
    _declare(lib, signatures)
    return lib


def _declare(lib: ctypes.CDLL, signatures: Signatures) -> None:
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        if function.argtypes is None:  # once: another thread may be in a call
            function.restype = result
            function.argtypes = arguments


def check(status: int) -> None:
    """Raise what a penstock_status stands for; 0 is silent."""
    if status == 0:
        return
    text = library().penstock_last_error().decode(errors="replace")
    # Device memory that a budget keeps back; without the word it is the device that has no more.
    remedy = "a larger gpu_memory" if status == _DEVICE_MEMORY and "budget" in text else None
    raise _ERRORS.get(status, FailedError)(text, remedy=remedy)
