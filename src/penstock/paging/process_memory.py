# SPDX-License-Identifier: Apache-2.0
"""What this process has of a GPU's memory, by the driver's word.

What the device has in use, less what NVML says of other processes, so that a program beside this
one does not count here; a question costs 30 us. (What NVML says of this process lacks the tables
behind its mappings.) Where NVML does not know this process (a container with numbers of its own for
processes, an old driver, Windows), all that is in use counts.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

PROCESSES = 256  # that are told of at once
UNKNOWN = (1 << 64) - 1


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
        self._others: int | None = None  # None: NVML does not know this process
        if self._nvml is not None and self._find():
            found = self._ask()
            # A figure below what is known to be held is another process's of the same number.
            if found is not None and found[0] >= torch.cuda.memory_reserved(device):
                self._others = found[1]

    @property
    def by_process(self) -> bool:
        """Whether others are told apart."""
        return self._others is not None

    def taken(self) -> int:
        """Bytes that are in use, less those of other processes where these are known."""
        if self._others is not None:
            found = self._ask()
            self._others = self._others if found is None else found[1]
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free - (self._others or 0)

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
