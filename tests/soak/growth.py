# SPDX-License-Identifier: Apache-2.0
"""What a process holds, counted again and again while nothing is attached, and whether it grows.

The device's memory is asked for from outside, of its management library in a process of its own;
everything else of the kernel. A count varies from look to look. It has grown if its least in the
last third of the looks is above its most in the first, after some to warm up; memory of the host,
of which Python and PyTorch keep some now and then, if it is by more than SLACK.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import time
from pathlib import Path

import torch

import penstock

WARMING = 0.15  # of the looks
APART_S = 4.0
SLACK = {"host_mib": 24}
FEW = 20  # looks that say nothing
QUERY = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]


class Growth:
    """The looks."""

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self._looks: list[dict[str, int]] = []
        self._last = 0.0
        self._trim = ctypes.CDLL(None).malloc_trim

    def look(self) -> None:
        """Count, if the last time was long enough ago."""
        if time.monotonic() < self._last + APART_S:
            return
        gc.collect()
        self._trim(0)
        found = {
            "attachments": len(penstock.attachments()),
            "threads": len(os.listdir("/proc/self/task")),
            "maps": len(Path("/proc/self/maps").read_text().splitlines()),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "host_mib": self._resident() >> 20,
        }
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            card = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"  # one of several
            said = subprocess.run([*QUERY, card], capture_output=True, text=True, check=True).stdout
            found["device_mib"] = int(said.split()[0])
        self._looks.append(found)
        self._last = time.monotonic()

    @staticmethod
    def _resident() -> int:
        """Bytes of its own, without those of files."""
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

    def _thirds(self) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
        warm = self._looks[int(WARMING * len(self._looks)) :]
        third = max(1, len(warm) // 3)
        return warm[:third], warm[-third:]

    def held(self) -> dict[str, dict[str, int]]:
        """Of each count the least and the most, in the first third and in the last."""
        first, last = self._thirds()
        return {
            name: {
                "first_least": min(look[name] for look in first),
                "first_most": max(look[name] for look in first),
                "last_least": min(look[name] for look in last),
                "last_most": max(look[name] for look in last),
            }
            for name in self._looks[0]
        } | {"looks": {"count": len(self._looks)}}

    def grown(self) -> list[str]:
        """The counts that have grown, and attachments that are left."""
        if len(self._looks) < FEW:
            return []
        return [
            name
            for name, each in self.held().items()
            if name != "looks"
            and (
                each["last_least"] > each["first_most"] + SLACK.get(name, 0)
                or (name == "attachments" and each["last_least"] > 0)
            )
        ]
