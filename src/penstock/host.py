# SPDX-License-Identifier: Apache-2.0
"""How much host memory there is, by the kernel's and the cgroup's word."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import OutOfMemory
from penstock.units import MIB, format_bytes

# Left for the program itself and the page cache's slow release.
SPARE = 512 * MIB


def available() -> int | None:
    """Bytes of host memory that can be had now; None where the kernel does not tell."""
    found = [value for value in (_meminfo("MemAvailable"), _cgroup_left()) if value is not None]
    return min(found) if found else None


def _meminfo(key: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _cgroup_left() -> int | None:
    """Room under the cgroup's own limit, file cache counted as free; None without a limit."""
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            text = Path(limit).read_text().strip()
            if text != "max" and int(text) < 1 << 60:
                return max(0, int(text) - int(Path(usage).read_text()))
        except (OSError, ValueError):
            continue
    return None


def check_host_memory(needed: int, *, movable: int = 0, limit: int | None = None) -> None:
    """Refuse before allocating what the host cannot hold.

    Args:
        needed: Bytes of page-locked memory wanted.
        movable: Bytes of it that replace host memory in use now (a model being moved in).
        limit: The user's own word on how many bytes there are; then the machine is not asked.

    Raises:
        OutOfMemory: With the numbers.
    """
    room = limit if limit is not None else available()
    if room is None:
        return
    spare = 0 if limit is not None else SPARE
    wanted = needed if limit is not None else max(0, needed - movable)
    if wanted + spare > room:
        raise OutOfMemory(
            f"{format_bytes(wanted)} of page-locked host memory are needed and "
            f"{format_bytes(max(0, room - spare))} are available",
            remedy="a smaller model or dtype, or a host with more memory",
            needed_bytes=wanted,
            budget_bytes=room,
        )
