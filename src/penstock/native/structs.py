# SPDX-License-Identifier: Apache-2.0
"""The structs of penstock.h for ctypes, field by field.

tests/unit/test_native_header.py holds them against native/api/include/penstock/penstock.h.
"""

from __future__ import annotations

from ctypes import (
    Structure,
    c_char,
    c_double,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any


class DeviceOptions(Structure):
    """penstock_device_options."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("kind", c_int32),
        ("ordinal", c_int32),
        ("capacity", c_uint64),
        ("host_capacity", c_uint64),
        ("granularity", c_uint64),
        ("seed", c_uint64),
        ("max_delay_us", c_uint32),
        ("reserved", c_uint32),
        ("fail_at_call", c_int64),
    ]


class DeviceInfo(Structure):
    """penstock_device_info."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("name", c_char * 128),
        ("ordinal", c_int32),
        ("driver_version", c_int32),
        ("compute_capability", c_int32),
        ("virtual_memory", c_int32),
        ("host_chunks", c_int32),
        ("managed", c_int32),
        ("concurrent_managed", c_int32),
        ("emulated", c_int32),
        ("total", c_uint64),
        ("granularity", c_uint64),
    ]


class LiveCounts(Structure):
    """penstock_live_counts."""

    _fields_ = [("struct_size", c_uint64)] + [
        (name, c_int64)
        for name in (
            "ranges",
            "chunks",
            "mappings",
            "host_allocations",
            "managed_allocations",
            "streams",
            "events",
        )
    ]


class PagerOptions(Structure):
    """penstock_pager_options."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("budget", c_uint64),
        ("chunk_bytes", c_uint64),
        ("look_ahead_bytes", c_uint64),
        ("max_copy_bytes", c_uint64),
        ("safety", c_int32),
        ("profile_every", c_int32),
        ("copy_streams", c_uint32),
        ("reserved", c_uint32),
        ("link_gb_per_s", c_double),
    ]


class Range(Structure):
    """penstock_range: address, bytes and the host copy of a new range."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("id", c_int64),
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("host", c_void_p),
    ]


class Piece(Structure):
    """penstock_piece."""

    _fields_ = [
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("written", c_uint32),
        ("reserved", c_uint32),
    ]


_STAT_COUNTS = [
    "bytes_in",
    "bytes_out",
    "page_uses",
    "page_hits",
    "prefetched_pages",
    "demanded_pages",
    "iterations",
    "plans",
    "mismatches",
    "map_calls",
    "unmap_calls",
    "copies",
    "budget",
    "device_bytes",
    "peak_device_bytes",
    "pinned_bytes",
    "host_bytes",
    "paged_bytes",
    "pages",
    "slots",
    "kept_pages",
    "streamed_pages",
    "stream_slots",
    "planned_bytes_in",
    "iteration_bytes_in",
    "iteration_bytes_out",
    "iteration_page_uses",
    "iteration_page_loads",
    "profiled_iterations",
]


class PagerStats(Structure):
    """penstock_pager_stats."""

    _fields_ = (
        [("struct_size", c_uint64)]
        + [(name, c_uint64) for name in _STAT_COUNTS]
        + [(name, c_double) for name in ("profiled_ms", "stall_ms", "largest_stall_ms")]
        + [("largest_stall_use", c_int32), ("reserved", c_int32)]
        + [(name, c_uint64) for name in ("encoded_bytes", "code_bytes")]
    )


class Packing(Structure):
    """penstock_packing."""

    _fields_ = [
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("encode", c_uint32),
        ("reserved", c_uint32),
        ("host", c_void_p),
    ]


class BudgetUse(Structure):
    """penstock_budget_use."""

    _names = ("struct_size", "limit", "pagers", "others", "others_peak")
    _fields_ = [(name, c_uint64) for name in _names]


class ManagedOptions(Structure):
    """penstock_managed_options."""

    _fields_ = [
        ("struct_size", c_uint64),
        ("budget", c_uint64),
        ("max_in_flight_bytes", c_uint64),
        ("look_ahead", c_int32),
        ("streams", c_int32),
        ("eviction", c_int32),
        ("read_mostly", c_int32),
        ("on_demand", c_int32),
        ("allow_oversubscription", c_int32),
        ("profile_every", c_int32),
        ("reserved", c_int32),
    ]


class ManagedGroup(Structure):
    """penstock_managed_group."""

    _fields_ = [
        ("bytes", c_uint64),
        ("address", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


_MANAGED_COUNTS = (
    "bytes_in bytes_out evicted_bytes prefetches evictions group_uses group_hits stalls "
    "iterations plans mismatches budget device_bytes peak_device_bytes "
    "managed_bytes host_only_bytes groups kept_groups kept_bytes planned_bytes_in "
    "iteration_bytes_in iteration_bytes_out iteration_group_uses iteration_group_hits "
    "iteration_stalls profiled_iterations"
).split()


class ManagedStats(Structure):
    """penstock_managed_stats."""

    _fields_ = (
        [("struct_size", c_uint64)]
        + [(name, c_uint64) for name in _MANAGED_COUNTS]
        + [(name, c_double) for name in ("profiled_ms", "stall_ms", "largest_stall_ms")]
        + [("largest_stall_group", c_int32), ("look_ahead", c_int32)]
    )


def as_dict(structure: Structure) -> dict[str, Any]:
    """The fields of a struct that mean something to a caller."""
    return {
        name: getattr(structure, name)
        for name, *_ in structure._fields_
        if name not in ("struct_size", "reserved")
    }
