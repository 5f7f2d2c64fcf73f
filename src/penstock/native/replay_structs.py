# SPDX-License-Identifier: Apache-2.0
"""The structs and functions of replays for ctypes, field by field.

tests/unit/test_native_header.py holds them against native/api/include/penstock/penstock.h.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_uint64, c_void_p
from typing import Any

from .allocator_structs import AllocatorOptions


class TraceEvents(Structure):
    """penstock_trace."""

    _fields_ = [("struct_size", c_uint64), ("count", c_uint64)] + [
        (name, c_void_p) for name in ("op", "id", "bytes", "stream", "time_us")
    ]


class ReplayOptions(Structure):
    """penstock_replay_options."""

    _fields_ = (
        [(name, c_uint64) for name in ("struct_size", "capacity", "granularity")]
        + [
            (name, c_double)
            for name in ("create_us", "map_us", "set_access_us", "unmap_us", "release_us")
        ]
        + [("allocator", c_int32), ("reserved", c_int32)]
    )


class ReplayPoint(Structure):
    """penstock_replay_point."""

    _fields_ = [(name, c_uint64) for name in ("time_us", "requested", "reserved")]


_COUNTS = "events allocations frees failed_event peak_requested_bytes peak_reserved_bytes".split()
_CALLS = "map_calls stitches stitch_hits".split()
_TIMES = "modelled_driver_ms modelled_driver_ms_second_half trace_ms ns_per_op".split()


class ReplayResult(Structure):
    """penstock_replay_result."""

    _fields_ = (
        [("struct_size", c_uint64)]
        + [(name, c_uint64) for name in _COUNTS]
        + [(name, c_int64) for name in _CALLS]
        + [(name, c_double) for name in _TIMES]
        + [("points", c_uint64)]
    )


SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "penstock_replay_defaults": (c_int32, [POINTER(ReplayOptions)]),
    "penstock_replay": (
        c_int32,
        [
            POINTER(TraceEvents),
            POINTER(ReplayOptions),
            POINTER(AllocatorOptions),
            POINTER(ReplayPoint),
            c_uint64,
            POINTER(ReplayResult),
        ],
    ),
}
