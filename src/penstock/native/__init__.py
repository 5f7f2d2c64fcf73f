# SPDX-License-Identifier: Apache-2.0
"""libpenstock.so by ctypes: devices, pagers and managed memory as Python objects.

Invariant: every failing call becomes one PenstockError with the library's own line; a closed
object refuses further use. ctypes drops the interpreter lock during a call, and the library locks
for itself, so objects may be used from any thread.
"""

from __future__ import annotations

from .budget import Budget, Shares, watch_segments
from .device import CUDA, EMULATED, Device
from .library import check, library, library_path
from .managed import EVICTION, ManagedSet
from .pager import ON_HOST, PINNED, SAFETY, Pager, Range

__all__ = [
    "CUDA",
    "EMULATED",
    "EVICTION",
    "ON_HOST",
    "PINNED",
    "SAFETY",
    "Budget",
    "Device",
    "ManagedSet",
    "Pager",
    "Range",
    "Shares",
    "check",
    "library",
    "library_path",
    "watch_segments",
]
