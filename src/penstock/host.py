# SPDX-License-Identifier: Apache-2.0
"""How much host memory there is, by the word of the kernel and of control groups.

Reads /proc and /sys, changes nothing; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.errors import OutOfMemory
from penstock.units import MIB, format_bytes

# Left for the program itself and the page cache's slow release.
SPARE = 512 * MIB


@dataclass(frozen=True)
class Limit:
    """What a control group allows its processes, in bytes."""

    total: int
    left: int


def available() -> int | None:
    """Bytes of host memory that can be had now; None where the kernel does not tell."""
    sizes = memory_sizes()
    found = [limit.left for limit in limits()] + ([sizes[1]] if sizes else [])
    return min(found) if found else None


def memory_sizes(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int] | None:
    """Total and available bytes of host memory; None where the kernel does not tell."""
    try:
        lines = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
        values = {line.partition(":")[0]: line.split()[1] for line in lines if line.count(" ")}
        return int(values["MemTotal"]) * 1024, int(values["MemAvailable"]) * 1024
    except (OSError, KeyError, IndexError, ValueError):
        return None


def limits(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> list[Limit]:
    """The limits on this process: its own control group's and those of the groups around it.

    A container may see its group as the root of `mount`, whatever `membership` says, so the root
    is always among the places looked at.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = Path(path.lstrip("/"))
        for group in (inside, *inside.parents):
            if not controllers:
                found.append(_limit(mount / group, "memory.max", "memory.current"))
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
                found.append(_limit(mount / "memory" / group, *names))
    return [limit for limit in found if limit is not None]


def _limit(group: Path, limit: str, usage: str) -> Limit | None:
    """One group's limit; what the file cache holds of it and can give back counts as left."""
    try:
        text = (group / limit).read_text(encoding="ascii").strip()
        # The first version of control groups writes "no limit" as a number of that order.
        if text == "max" or int(text) >= 1 << 60:
            return None
        used = int((group / usage).read_text(encoding="ascii"))
        return Limit(int(text), max(0, int(text) - used + _file_cache(group / "memory.stat")))
    except (OSError, ValueError):
        return None


def _file_cache(stat: Path) -> int:
    try:
        values = dict(line.split() for line in stat.read_text(encoding="ascii").splitlines())
        return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


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
            remedy="a smaller model or dtype, or a "
            + ("larger host_memory" if limit is not None else "host with more memory"),
            needed_bytes=wanted,
            budget_bytes=room,
        )
