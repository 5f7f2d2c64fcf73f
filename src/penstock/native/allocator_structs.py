# SPDX-License-Identifier: Apache-2.0
"""The stitching allocator's structs and functions for ctypes, field by field.

tests/unit/test_native_header.py holds them against native/api/include/penstock/penstock.h, and
tests/unit/test_native_torch.py the last of each against native/adapters/torch_allocator.hpp.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from typing import Any

from .structs import DeviceOptions

StreamFilter = CFUNCTYPE(c_int32, c_uint64, c_void_p)
ContextCallback = CFUNCTYPE(c_uint64, c_int32, c_void_p)
OutOfMemoryObserver = CFUNCTYPE(None, c_int32, c_uint64, c_uint64, c_uint64)


class AllocatorOptions(Structure):
    """penstock_allocator_options."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("budget", c_uint64),
        ("chunk_bytes", c_uint64),
        ("growth_bytes", c_uint64),
        ("stitch_limit", c_uint64),
        ("range_limit", c_uint64),
        ("reuse_limit", c_double),
        ("stitch_when", c_int32),
        ("grow_exactly", c_int32),
        ("largest_chunk_bytes", c_uint64),
    ]


class Stat(Structure):
    """penstock_stat."""

    _fields_ = [(name, c_int64) for name in ("current", "peak", "allocated", "freed")]


# What is told three times: of all blocks, of small ones, of the larger ones.
SPLIT_STATS = (
    "requested_bytes allocated_bytes active_bytes inactive_bytes reserved_bytes allocations "
    "active_blocks inactive_blocks"
).split()
WHOLE_STATS = "chunks stitched_ranges stitched_range_bytes".split()
COUNTS = "retries out_of_memory stitches stitch_hits stream_waits driver_calls".split()


class AllocatorStats(Structure):
    """penstock_allocator_stats."""

    _fields_ = (
        [("struct_size", c_uint64)]
        + [(name, Stat * 3) for name in SPLIT_STATS]
        + [(name, Stat) for name in WHOLE_STATS]
        + [(name, c_int64) for name in COUNTS]
        + [(name, c_uint64) for name in ("budget", "device_free", "device_total")]
    )


class PieceInfo(Structure):
    """penstock_piece_info."""

    _fields_ = [
        (name, c_uint64)
        for name in (
            "segment segment_bytes address bytes block block_offset requested_bytes stream "
            "pool_high pool_low"
        ).split()
    ] + [("state", c_int32), ("stitched", c_int32)]


class HistoryEvent(Structure):
    """penstock_history_event."""

    _fields_ = (
        [("time_ns", c_int64)]
        + [
            (name, c_uint64)
            for name in ("address bytes requested_bytes stream pool_high pool_low context".split())
        ]
        + [("event", c_int32), ("reserved", c_int32)]
    )


class TorchOptions(Structure):
    """penstock_torch_options."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("device", POINTER(DeviceOptions)),
        ("allocator", POINTER(AllocatorOptions)),
        ("budget_share", c_double),
    ]


SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "penstock_allocator_defaults": (c_int32, [c_void_p, POINTER(AllocatorOptions)]),
    "penstock_allocator_create": (
        c_int32,
        [c_void_p, POINTER(AllocatorOptions), POINTER(c_void_p)],
    ),
    "penstock_allocator_destroy": (None, [c_void_p]),
    "penstock_allocate": (c_int32, [c_void_p, c_uint64, c_uint64, POINTER(c_uint64)]),
    "penstock_free": (c_int32, [c_void_p, c_uint64]),
    "penstock_record_stream": (c_int32, [c_void_p, c_uint64, c_uint64]),
    "penstock_empty_cache": (c_int32, [c_void_p]),
    "penstock_allocator_set_budget": (c_int32, [c_void_p, c_uint64]),
    "penstock_pool_begin": (c_int32, [c_void_p, c_uint64, c_uint64, StreamFilter, c_void_p]),
    "penstock_pool_end": (c_int32, [c_void_p, c_uint64, c_uint64]),
    "penstock_pool_release": (c_int32, [c_void_p, c_uint64, c_uint64]),
    "penstock_allocator_get_stats": (c_int32, [c_void_p, POINTER(AllocatorStats)]),
    "penstock_allocator_reset_peaks": (c_int32, [c_void_p]),
    "penstock_allocator_reset_accumulated": (c_int32, [c_void_p]),
    "penstock_allocator_pieces": (
        c_int32,
        [c_void_p, POINTER(PieceInfo), c_uint64, POINTER(c_uint64)],
    ),
    "penstock_allocator_record_history": (
        c_int32,
        [c_void_p, c_uint64, ContextCallback, c_void_p],
    ),
    "penstock_allocator_history": (
        c_int32,
        [c_void_p, POINTER(HistoryEvent), c_uint64, POINTER(c_uint64)],
    ),
}

# Of native/adapters/torch_allocator.hpp; what torch alone calls is known by its address only.
TORCH_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "penstock_torch_configure": (c_int32, [POINTER(TorchOptions)]),
    "penstock_torch_allocator": (c_int32, [c_int32, POINTER(c_void_p)]),
    "penstock_torch_record_history": (c_int32, [c_uint64, ContextCallback, c_void_p]),
    "penstock_torch_error_kind": (c_int32, []),
    "penstock_torch_observe_out_of_memory": (None, [OutOfMemoryObserver]),
    "penstock_torch_alloc": (c_void_p, [c_size_t, c_int32, c_void_p]),
    "penstock_torch_alloc_or_null": (c_void_p, [c_size_t, c_int32, c_void_p]),
    "penstock_torch_free": (None, [c_void_p, c_size_t, c_int32, c_void_p]),
    "penstock_torch_reset": (None, []),
    "penstock_torch_memory_fraction": (None, [c_double, c_int32]),
}
