# SPDX-License-Identifier: Apache-2.0
"""Checks of the NVIDIA driver and one GPU, without torch.

The driver is probed by itself first, so that what is wrong with it can be said even where the
native library has a problem of its own.  The measurement page-locks a few hundred MiB for a
moment; nothing else is allocated.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.units import GIB, MIB, format_bytes

from .result import Check

WHY_DRIVER = "Penstock speaks to the GPU through the driver alone; no CUDA toolkit is needed."
WHY_GPU = "Models run on it; without one, the emulated GPU shows that they run correctly."
WHY_VMM = "Paging changes what backs an address, which takes virtual memory management."
WHY_MANAGED = "Only --memory managed needs it; the default, vmm, does not."
WHY_LINK = "A model larger than the budget runs at the speed of page-locked copies."
SLOW_LINK_GB_PER_S = 2 * GIB / 1e9
NO_DEVICE = 100
LINK_BYTES = 256 * MIB
LINK_REPEATS = 3


def driver() -> Check:
    """Whether libcuda.so.1 loads and starts."""
    present = Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        if present:
            remedy = "in a container: docker run --gpus all (nvidia-container-toolkit)"
            return Check(
                "driver", "fail", f"a GPU, but no driver library: {error}", WHY_DRIVER, remedy
            )
        return Check("driver", "skip", "no NVIDIA driver", WHY_DRIVER, "install one for a GPU")
    status = cuda.cuInit(0)
    if status == NO_DEVICE:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        observed = "the driver sees no GPU"
        if hidden is not None:
            observed += f" (CUDA_VISIBLE_DEVICES={hidden!r})"
        remedy = "unset CUDA_VISIBLE_DEVICES" if hidden is not None else "nvidia-smi lists GPUs"
        return Check("driver", "skip", observed, WHY_DRIVER, remedy)
    if status:
        observed = f"cuInit failed: {_error_name(cuda, status)}"
        return Check("driver", "fail", observed, WHY_DRIVER, "see what nvidia-smi says; restart")
    major, minor = driver_version()
    return Check("driver", "ok", f"CUDA {major}.{minor}", WHY_DRIVER)


def driver_version() -> tuple[int, int]:
    """The CUDA version that the driver offers; it must be there."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def card(ordinal: int) -> Iterator[Check]:
    """Open a GPU and look at all that paging needs of it.

    Args:
        ordinal: Its CUDA device number.
    """
    from penstock import native

    try:
        with native.Device(native.CUDA, ordinal) as device:
            info = device.info()
            free, total = device.memory()
            observed = f"{info['name']}, {format_bytes(free)} free of {format_bytes(total)}"
            yield Check("gpu", "ok", observed, WHY_GPU)
            yield _virtual_memory(info)
            yield _managed(info)
            yield _link(device)
    except (PenstockError, AttributeError) as error:
        remedy = getattr(error, "remedy", None) or "nvidia-smi lists the GPUs"
        yield Check("gpu", "fail", getattr(error, "what", str(error)), WHY_GPU, remedy)


def no_card(reason: str) -> Iterator[Check]:
    """The same checks where there is nothing to open."""
    for name, why in (
        ("gpu", WHY_GPU),
        ("vmm", WHY_VMM),
        ("managed", WHY_MANAGED),
        ("link", WHY_LINK),
    ):
        yield Check(name, "skip", reason, why)


def _virtual_memory(info: dict[str, Any]) -> Check:
    if info["virtual_memory"]:
        observed = f"granularity {format_bytes(info['granularity'])}"
        return Check("vmm", "ok", observed, WHY_VMM)
    remedy = "a newer driver, or a GPU that is not a vGPU; --memory managed may work"
    return Check("vmm", "fail", "not supported", WHY_VMM, remedy)


def _managed(info: dict[str, Any]) -> Check:
    if info["managed"] and info["concurrent_managed"]:
        return Check("managed", "ok", "managed memory, accessed concurrently", WHY_MANAGED)
    observed = "not accessed concurrently" if info["managed"] else "no managed memory"
    return Check("managed", "warn", observed, WHY_MANAGED, "use --memory vmm, the default")


def _link(device: Any) -> Check:
    try:
        speed_in, speed_out = device.measure_link(LINK_BYTES, LINK_REPEATS)
    except PenstockError as error:
        remedy = error.remedy or "free host memory, or raise ulimit -l"
        return Check("link", "fail", error.what, WHY_LINK, remedy)
    slow = min(speed_in, speed_out) < SLOW_LINK_GB_PER_S
    return Check(
        "link",
        "warn" if slow else "ok",
        f"{speed_in:.1f} GB/s in, {speed_out:.1f} GB/s out (measured, page-locked)",
        WHY_LINK,
        "the slot gives the card few PCIe lanes: nvidia-smi -q -d PCIE" if slow else "",
    )


def _error_name(cuda: ctypes.CDLL, status: int) -> str:
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(status, ctypes.byref(name))
    return name.value.decode() if name.value else str(status)
