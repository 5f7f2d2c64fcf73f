# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine: Python, memory and the limits on it.  Reads /proc and /sys only."""

from __future__ import annotations

import platform
import resource
import sys
from pathlib import Path

from penstock.host import limits, memory_sizes
from penstock.units import GIB, MIB, format_bytes

from .result import Check

LOW_MEMORY = 4 * GIB
# The kernel's own default; a mapping of the emulated GPU is a mapping of the process.
USUAL_MAP_COUNT = 65530
CHUNK = 2 * MIB


def python() -> Check:
    """The interpreter and the platform that Penstock is built for."""
    observed = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    built_for = sys.platform == "linux" and platform.machine() == "x86_64"
    return Check(
        "python",
        "ok" if built_for and sys.version_info >= (3, 10) else "fail",
        observed,
        "Penstock runs on Python 3.10 or newer, on Linux on x86_64.",
        "" if built_for else "use a Linux machine with an x86_64 processor",
    )


def host_memory(meminfo: Path = Path("/proc/meminfo")) -> Check:
    """How much memory there is for what the GPU does not hold."""
    why = "What does not fit on the GPU waits in page-locked host memory: all weights, as a rule."
    sizes = memory_sizes(meminfo)
    if sizes is None:
        return Check("host-memory", "skip", f"{meminfo} does not tell", why)
    total, available = sizes
    low = available < LOW_MEMORY
    return Check(
        "host-memory",
        "warn" if low else "ok",
        f"{format_bytes(available)} available of {format_bytes(total)}",
        why,
        "end other programs; penstock estimate MODEL says what a model needs" if low else "",
    )


def control_group(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> Check:
    """The limit that a container or a job scheduler puts on memory."""
    why = "A process that grows beyond the limit of its control group is killed without a word."
    sizes = memory_sizes()
    total, available = sizes if sizes else (1 << 63, 1 << 63)
    found = [limit for limit in limits(membership, mount) if limit.total < total]
    if not found:
        return Check("cgroup", "ok", "no limit below the machine's memory", why)
    tightest = min(found, key=lambda limit: limit.left)
    tight = tightest.left < min(available, LOW_MEMORY)
    return Check(
        "cgroup",
        "warn" if tight else "ok",
        f"{format_bytes(tightest.left)} left of a limit of {format_bytes(tightest.total)}",
        why,
        "raise it: docker run --memory=..., or the memory request of the job" if tight else "",
    )


def memlock(*, page_locking_failed: bool) -> Check:
    """The limit on locked memory, which matters where the driver could not page-lock.

    Args:
        page_locking_failed: Whether a measurement that page-locks memory failed.
    """
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = limit == resource.RLIM_INFINITY
    blamed = page_locking_failed and not unlimited
    return Check(
        "memlock",
        "warn" if blamed else "ok",
        "unlimited" if unlimited else f"limit {format_bytes(limit)}",
        "The NVIDIA driver page-locks on its own account; some containers hold it to this limit.",
        "ulimit -l unlimited, or docker run --ulimit memlock=-1" if blamed else "",
    )


def map_count(path: Path = Path("/proc/sys/vm/max_map_count")) -> Check:
    """How many mappings a process may have."""
    why = "Each mapped chunk of the emulated GPU is a mapping of the process."
    try:
        count = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return Check("max-map-count", "skip", f"{path} does not tell", why)
    low = count < USUAL_MAP_COUNT
    return Check(
        "max-map-count",
        "warn" if low else "ok",
        f"{count:,}: {format_bytes(count * CHUNK)} in chunks of {format_bytes(CHUNK)}",
        why,
        f"sysctl -w vm.max_map_count={USUAL_MAP_COUNT}" if low else "",
    )
