# SPDX-License-Identifier: Apache-2.0
"""What this process has of a GPU's memory, by the driver's word.

What NVML says of it, so that a program beside this one does not count here, and the driver's own
tables, which NVML leaves out: what the device has in use that nobody is said to have, up to the
size that the tables of so much page-locked memory have. (More than that is another process's that
has just begun or ended.) A question costs 30 us. Where NVML does not know this process (a container
with numbers of its own for processes, an old driver, Windows), all that is in use counts.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

from penstock.units import MIB

PROCESSES = 256  # that are told of at once
UNKNOWN = (1 << 64) - 1
# On an H100 with driver 580, 8.8 MiB are in use beyond what NVML says, and 4 MiB for each GiB of
# page-locked memory (16 bytes a page of 4 KiB); device memory adds none.
TABLES = 16 * MIB
TABLES_PER_LOCKED = 1 / 256


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t of the third version."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class ProcessMemory:
    """This process's memory on one device.

    Args:
        device: The device.
        nvml: libnvidia-ml.so.1, or what stands for it in tests; None: as it is found.
    """

    def __init__(self, device: torch.device, nvml: Any = None) -> None:
        self._device = device
        self._nvml = nvml or _library()
        self._handle = ctypes.c_void_p()
        self._processes = (_Process * PROCESSES)()
        self._known: tuple[int, int] | None = None  # None: NVML does not know this process
        self._tables = 0
        if self._nvml is not None and self._find():
            found = self._ask()
            # A figure below what is known to be held is another process's of the same number.
            if found is not None and found[0] >= torch.cuda.memory_reserved(device):
                self._known = found

    def taken(self, locked: int = 0) -> int:
        """Bytes that this process has, or all that are in use where it is not known.

        Args:
            locked: Bytes of host memory that it has page-locked.
        """
        if self._known is not None:
            self._known = self._ask() or self._known
        free, total = torch.cuda.mem_get_info(self._device)
        if self._known is None:
            return total - free
        own, others = self._known
        tables = total - free - others - own
        if tables >= 0:  # else a process that has ended is still told of
            self._tables = min(tables, TABLES + int(locked * TABLES_PER_LOCKED))
        return own + self._tables

    def _find(self) -> bool:
        uuid = str(torch.cuda.get_device_properties(self._device).uuid)
        by_uuid, handle = self._nvml.nvmlDeviceGetHandleByUUID, ctypes.byref(self._handle)
        return any(by_uuid(name.encode(), handle) == 0 for name in (f"GPU-{uuid}", uuid))

    def _ask(self) -> tuple[int, int] | None:
        """What this process has, and what others have."""
        count, found = ctypes.c_uint(PROCESSES), self._processes
        ask = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3
        if ask(self._handle, ctypes.byref(count), found) != 0:
            return None
        told = [(each.pid == os.getpid(), each.used) for each in found[: count.value]]
        own = [used for is_own, used in told if is_own]
        if len(own) != 1 or any(used == UNKNOWN for _, used in told):
            return None
        return own[0], sum(used for is_own, used in told if not is_own)


def _library() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
