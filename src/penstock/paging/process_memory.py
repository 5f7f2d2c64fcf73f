# SPDX-License-Identifier: Apache-2.0
"""What this process has of a GPU's memory, by the driver's word.

NVML tells it by process, so that a program beside this one does not count here; a question costs
25 us. Where NVML does not know the process (a container with numbers of its own for processes, an
old driver, Windows), what the whole device has in use stands for it.
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
        self._last: int | None = None  # None: NVML does not know this process
        if self._nvml is not None and self._find():
            own = self._own()
            # A figure below what is known to be held is another process's of the same number.
            if own is not None and own >= torch.cuda.memory_reserved(device):
                self._last = own

    @property
    def by_process(self) -> bool:
        """Whether taken() is of this process alone."""
        return self._last is not None

    def taken(self) -> int:
        """Bytes of this process, or of all where that is not known."""
        if self._last is None:
            free, total = torch.cuda.mem_get_info(self._device)
            return total - free
        own = self._own()
        self._last = self._last if own is None else own
        return self._last

    def _find(self) -> bool:
        uuid = str(torch.cuda.get_device_properties(self._device).uuid)
        by_uuid, handle = self._nvml.nvmlDeviceGetHandleByUUID, ctypes.byref(self._handle)
        return any(by_uuid(name.encode(), handle) == 0 for name in (f"GPU-{uuid}", uuid))

    def _own(self) -> int | None:
        count, found = ctypes.c_uint(PROCESSES), self._processes
        ask = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3
        if ask(self._handle, ctypes.byref(count), found) != 0:
            return None
        pid = os.getpid()
        own = [each.used for each in found[: count.value] if each.pid == pid]
        return own[0] if len(own) == 1 and own[0] < UNKNOWN else None


def _library() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
