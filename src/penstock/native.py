# SPDX-License-Identifier: Apache-2.0
"""libpenstock.so by ctypes: devices and pagers as Python objects.

Invariant: every failing call becomes one PenstockError with the library's own line; a closed
object refuses further use. The structs mirror native/api/include/penstock/penstock.h, and
tests/unit/test_native_header.py holds the two against each other. ctypes drops the interpreter
lock during a call, and the library locks for itself, so objects may be used from any thread.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.errors import EnvironmentProblem, FailedError, OutOfMemory, PenstockError, UsageError

CUDA, EMULATED = 0, 1
SAFETY = {"normal": 0, "strict": 1}
PINNED, ON_HOST = 1, 2  # flags of a range

_ERRORS: dict[int, type[PenstockError]] = {
    1: UsageError,
    2: OutOfMemory,
    3: OutOfMemory,
    4: EnvironmentProblem,
    5: EnvironmentProblem,
}


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
    )


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "penstock_version": (c_char_p, []),
    "penstock_last_error": (c_char_p, []),
    "penstock_open": (c_int32, [POINTER(DeviceOptions), POINTER(c_void_p)]),
    "penstock_close": (None, [c_void_p]),
    "penstock_get_info": (c_int32, [c_void_p, POINTER(DeviceInfo)]),
    "penstock_memory": (c_int32, [c_void_p, POINTER(c_uint64), POINTER(c_uint64)]),
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
    "penstock_iteration": (c_int32, [c_void_p]),
    "penstock_fetch": (c_int32, [c_void_p, c_uint64, c_uint64]),
    "penstock_flush": (c_int32, [c_void_p, c_uint64, c_uint64]),
    "penstock_pager_resize": (c_int32, [c_void_p, c_uint64]),
    "penstock_pager_smallest": (c_uint64, [c_void_p]),
    "penstock_pager_get_stats": (c_int32, [c_void_p, POINTER(PagerStats)]),
}


def library_path() -> Path:
    """Where libpenstock.so lies: beside this file, or where PENSTOCK_LIBRARY points."""
    named = os.environ.get("PENSTOCK_LIBRARY")
    return Path(named) if named else Path(__file__).parent / "lib" / "libpenstock.so"


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
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def check(status: int) -> None:
    """Raise what a penstock_status stands for; 0 is silent."""
    if status == 0:
        return
    text = library().penstock_last_error().decode(errors="replace")
    raise _ERRORS.get(status, FailedError)(text)


class Device:
    """One GPU, real or emulated.

    Args:
        kind: CUDA or EMULATED.
        ordinal: The CUDA device number.
        options: Fields of penstock_device_options for the emulated GPU: capacity,
            host_capacity, granularity (bytes), seed, max_delay_us, fail_at_call.

    Raises:
        EnvironmentProblem: If there is no driver or no such device.
    """

    def __init__(self, kind: int = CUDA, ordinal: int = 0, **options: int) -> None:
        self._lib = library()
        self._handle: c_void_p | None = None
        wanted = DeviceOptions(sizeof(DeviceOptions), kind=kind, ordinal=ordinal, **options)
        handle = c_void_p()
        check(self._lib.penstock_open(byref(wanted), byref(handle)))
        self._handle = handle

    @property
    def handle(self) -> c_void_p:
        """The penstock_device pointer."""
        if self._handle is None:
            raise UsageError("the device has been closed")
        return self._handle

    def info(self) -> dict[str, Any]:
        """What the device is: name, total and granularity (bytes), driver_version, features."""
        info = DeviceInfo(sizeof(DeviceInfo))
        check(self._lib.penstock_get_info(self.handle, byref(info)))
        result = _as_dict(info)
        result["name"] = info.name.decode(errors="replace")
        for name in ("virtual_memory", "host_chunks", "managed", "concurrent_managed", "emulated"):
            result[name] = bool(result[name])
        return result

    def memory(self) -> tuple[int, int]:
        """Free and total device memory, in bytes, as the driver tells it."""
        free, total = c_uint64(), c_uint64()
        check(self._lib.penstock_memory(self.handle, byref(free), byref(total)))
        return free.value, total.value

    def live(self) -> dict[str, int]:
        """How many driver objects are alive: ranges, chunks, mappings, streams, ..."""
        counts = LiveCounts(sizeof(LiveCounts))
        check(self._lib.penstock_live(self.handle, byref(counts)))
        return _as_dict(counts)

    def driver_calls(self) -> int:
        """Calls so far that fail_at_call counts (the emulated GPU only)."""
        return int(self._lib.penstock_driver_calls(self.handle))

    def measure_link(self, size: int = 256 << 20, repeats: int = 3) -> tuple[float, float]:
        """Page-locked copy speed in and out, decimal GB/s, best of `repeats` copies of `size`."""
        speed_in, speed_out = c_double(), c_double()
        check(
            self._lib.penstock_measure_link(
                self.handle, size, repeats, byref(speed_in), byref(speed_out)
            )
        )
        return speed_in.value, speed_out.value

    def close(self) -> None:
        """Give the device back; pagers on it must be closed before. Harmless when repeated."""
        if self._handle is not None:
            self._lib.penstock_close(self._handle)
            self._handle = None

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pager:
    """A pager on a device; see penstock.h for what each call does.

    Args:
        device: The open device; it must outlive the pager.
        budget: Bytes of device memory for chunks.
        chunk_bytes: The unit of paging.
        look_ahead_bytes: Wanted in flight beyond the running use.
        max_copy_bytes: Neighbouring pages go in one copy up to this size.
        safety: "normal" or "strict".
        profile_every: Time the stalls of every Nth iteration; 0 = never.
        copy_streams: Copies in that may be under way at once; 0 = the library's default.
    """

    def __init__(
        self,
        device: Device,
        *,
        budget: int,
        chunk_bytes: int,
        look_ahead_bytes: int,
        max_copy_bytes: int,
        safety: str = "normal",
        profile_every: int = 8,
        copy_streams: int = 0,
    ) -> None:
        self._lib = library()
        self._handle: c_void_p | None = None
        self.device = device
        options = PagerOptions(
            sizeof(PagerOptions),
            budget,
            chunk_bytes,
            look_ahead_bytes,
            max_copy_bytes,
            SAFETY[safety],
            profile_every,
            copy_streams,
        )
        handle = c_void_p()
        check(self._lib.penstock_pager_create(device.handle, byref(options), byref(handle)))
        self._handle = handle

    @property
    def handle(self) -> c_void_p:
        """The penstock_pager pointer."""
        if self._handle is None:
            raise UsageError("the pager has been closed")
        return self._handle

    def create_range(self, size: int, flags: int = 0) -> Range:
        """Reserve `size` bytes of device addresses with a page-locked host copy.

        Args:
            size: Bytes.
            flags: 0 for a paged range, PINNED or ON_HOST.
        """
        made = Range(sizeof(Range))
        check(self._lib.penstock_range_create(self.handle, size, flags, byref(made)))
        return made

    def define_use(self, pieces: Sequence[tuple[int, int, bool]]) -> int:
        """Declare a use of (address, bytes, written) pieces; returns its number."""
        array = (Piece * len(pieces))(*[Piece(a, n, int(w), 0) for a, n, w in pieces])
        use = c_int32()
        check(self._lib.penstock_use_define(self.handle, array, len(pieces), byref(use)))
        return use.value

    def begin(self, use: int, stream: int = 0) -> None:
        """The use begins: its pages are resident for what `stream` is given from here on."""
        check(self._lib.penstock_use_begin(self.handle, use, stream))

    def end(self, use: int, stream: int = 0) -> None:
        """The use ends: `stream` has been given all that touches its pages."""
        check(self._lib.penstock_use_end(self.handle, use, stream))

    def iteration(self) -> None:
        """The uses since the last call were one iteration."""
        check(self._lib.penstock_iteration(self.handle))

    def fetch(self, address: int, size: int) -> None:
        """Bring a piece in and wait for it."""
        check(self._lib.penstock_fetch(self.handle, address, size))

    def flush(self, address: int, size: int) -> None:
        """Copy what was written in a piece back to the host and wait."""
        check(self._lib.penstock_flush(self.handle, address, size))

    def resize(self, budget: int) -> None:
        """Change the budget (bytes)."""
        check(self._lib.penstock_pager_resize(self.handle, budget))

    def smallest(self) -> int:
        """The smallest budget, in bytes, that the declared uses can run in."""
        return int(self._lib.penstock_pager_smallest(self.handle))

    def stats(self) -> dict[str, Any]:
        """Counters and sizes; see penstock_pager_stats."""
        stats = PagerStats(sizeof(PagerStats))
        check(self._lib.penstock_pager_get_stats(self.handle, byref(stats)))
        return _as_dict(stats)

    def close(self) -> None:
        """Wait for its work and free all it holds. Harmless when repeated."""
        if self._handle is not None:
            self._lib.penstock_pager_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> Pager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _as_dict(structure: Structure) -> dict[str, Any]:
    return {
        name: getattr(structure, name)
        for name, *_ in structure._fields_
        if name not in ("struct_size", "reserved")
    }
