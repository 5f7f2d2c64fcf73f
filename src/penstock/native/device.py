# SPDX-License-Identifier: Apache-2.0
"""One GPU, real or emulated."""

from __future__ import annotations

from ctypes import c_double, c_uint64
from typing import Any

from .api import as_dict, new
from .handle import Handle
from .library import check

CUDA, EMULATED = 0, 1


class Device(Handle):
    """One GPU, real or emulated.

    Args:
        kind: CUDA or EMULATED.
        ordinal: The CUDA device number.
        options: Fields of penstock_device_options for the emulated GPU: capacity,
            host_capacity, granularity (bytes), seed, max_delay_us, fail_at_call.

    Raises:
        EnvironmentProblem: If there is no driver or no such device.
    """

    _prefix, _freed_by, _gone = "penstock", "close", "the device has been closed"

    def __init__(self, kind: int = CUDA, ordinal: int = 0, **options: int) -> None:
        super().__init__()
        wanted = new("device_options", kind=kind, ordinal=ordinal, **options)
        self._open(self._lib.penstock_open, wanted)

    def info(self) -> dict[str, Any]:
        """What the device is: name, total and granularity (bytes), driver_version, features."""
        info = new("device_info")
        check(self._lib.penstock_get_info(self.handle, info))
        result = as_dict(info)
        result["name"] = info.name.decode(errors="replace")
        for name in ("virtual_memory", "host_chunks", "managed", "concurrent_managed", "emulated"):
            result[name] = bool(result[name])
        return result

    def memory(self) -> tuple[int, int]:
        """Free and total device memory, in bytes, as the driver tells it."""
        free, total = c_uint64(), c_uint64()
        check(self._lib.penstock_memory(self.handle, free, total))
        return free.value, total.value

    def live(self) -> dict[str, int]:
        """How many driver objects are alive: ranges, chunks, mappings, streams, ..."""
        counts = new("live_counts")
        check(self._lib.penstock_live(self.handle, counts))
        return as_dict(counts)

    def driver_calls(self) -> int:
        """Calls so far that fail_at_call counts (the emulated GPU only)."""
        return int(self._lib.penstock_driver_calls(self.handle))

    def measure_link(self, size: int = 256 << 20, repeats: int = 3) -> tuple[float, float]:
        """Page-locked copy speed in and out, decimal GB/s, best of `repeats` copies of `size`."""
        speeds = c_double(), c_double()
        check(self._lib.penstock_measure_link(self.handle, size, repeats, *speeds))
        return speeds[0].value, speeds[1].value
