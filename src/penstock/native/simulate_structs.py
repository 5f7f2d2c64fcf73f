# SPDX-License-Identifier: Apache-2.0
"""The structs and functions of simulations for ctypes, field by field.

tests/unit/test_native_header.py holds them against native/api/include/penstock/penstock.h.
"""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_double,
    c_int32,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any


class WorkRecord(Structure):
    """penstock_work_record."""

    _fields_ = [
        ("op", c_uint8),
        ("flags", c_uint8),
        ("kind", c_uint16),
        ("number", c_uint32),
        ("at", c_uint64),
        ("value", c_uint64),
    ]


_SIZES = "struct_size budget device_bytes page_bytes granularity steps".split()
_COSTS = "link_gb_per_s create_us map_us set_access_us unmap_us".split()


class SimulateOptions(Structure):
    """penstock_simulate_options."""

    _fields_ = (
        [(name, c_uint64) for name in _SIZES]
        + [(name, c_double) for name in _COSTS]
        + [("policy", c_int32), ("kernels_write", c_int32), ("recorded_budget", c_uint64)]
    )


_MOVED = "bytes_in bytes_out page_uses page_loads least_bytes_in least_bytes_out".split()


class SimulateStep(Structure):
    """penstock_simulate_step."""

    _fields_ = (
        [(name, c_double) for name in ("ms", "recorded_ms", "least_ms")]
        + [(name, c_uint64) for name in _MOVED]
        + [("first_piece", c_uint64), ("end_piece", c_uint64)]
    )


class SimulateSpan(Structure):
    """penstock_simulate_span."""

    _fields_ = [("lane", c_uint64), ("begin_ms", c_double), ("end_ms", c_double)]


_FOUND = "steps pieces blocks peak_bytes page_bytes ahead demanded".split()


class SimulateResult(Structure):
    """penstock_simulate_result."""

    _fields_ = [
        (name, c_uint64)
        for name in ["struct_size", *_FOUND, "failed_piece", "failed_bytes", "spans"]
    ]


SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "penstock_simulate_defaults": (c_int32, [POINTER(SimulateOptions)]),
    "penstock_simulate": (
        c_int32,
        [
            c_void_p,
            c_uint64,
            POINTER(SimulateOptions),
            POINTER(SimulateStep),
            c_uint64,
            POINTER(SimulateSpan),
            c_uint64,
            POINTER(SimulateResult),
        ],
    ),
}
