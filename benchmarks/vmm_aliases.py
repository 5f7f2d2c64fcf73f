# SPDX-License-Identifier: Apache-2.0
"""At how many addresses the driver maps one chunk, and what mapping costs as they grow in number.

    python benchmarks/vmm_aliases.py --output benchmarks/results/vmm_aliases.json

One chunk is mapped at one address after another until the driver refuses; then half of them are
unmapped, and it is tried again. Nothing is allocated beyond that chunk.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measure import provenance, write_result

MIB = 1 << 20
MOST = 4096  # addresses tried


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def aliases(cuda: ctypes.CDLL, chunk: int) -> dict[str, Any]:
    """Map one chunk of so many bytes until that fails."""
    device = Location(1, torch.cuda.current_device())
    properties = Properties(type=1, location=device)
    handle, base = ctypes.c_uint64(), ctypes.c_uint64()
    size = ctypes.c_size_t
    word = ctypes.c_uint64

    def call(name: str, *arguments: Any) -> int:
        return int(getattr(cuda, name)(*arguments))

    assert call("cuMemCreate", ctypes.byref(handle), size(chunk), ctypes.byref(properties), 0) == 0
    total = size(MOST * chunk)
    reserve = ("cuMemAddressReserve", ctypes.byref(base), total, size(0), word(0), word(0))
    assert call(*reserve) == 0
    access = Access(device, 3)

    def map_at(index: int) -> int:
        address = word(base.value + index * chunk)
        return call("cuMemMap", address, size(chunk), size(0), handle, word(0)) or call(
            "cuMemSetAccess", address, size(chunk), ctypes.byref(access), size(1)
        )

    mapped, error, costs = 0, 0, []
    while mapped < MOST:
        begin = time.perf_counter()
        error = map_at(mapped)
        if error:
            break
        costs.append((time.perf_counter() - begin) * 1e6)
        mapped += 1
    row: dict[str, Any] = {"chunk_mib": chunk // MIB, "mapped": mapped, "error": error}
    row["us_of_the_first_16"] = round(sum(costs[:16]) / len(costs[:16]), 1)
    row["us_of_the_last_16"] = round(sum(costs[-16:]) / len(costs[-16:]), 1)
    held = set(range(mapped))
    if error:
        for index in range(mapped // 2):
            assert call("cuMemUnmap", word(base.value + index * chunk), size(chunk)) == 0
            held.discard(index)
        # The address that was refused, again.
        row["error_after_unmapping_half"] = map_at(mapped)
        if row["error_after_unmapping_half"] == 0:
            held.add(mapped)
    for index in held:
        assert call("cuMemUnmap", word(base.value + index * chunk), size(chunk)) == 0
    assert call("cuMemRelease", handle) == 0
    assert call("cuMemAddressFree", base, total) == 0
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.zeros(1, device="cuda")
    cuda = ctypes.CDLL("libcuda.so.1")
    rows = [aliases(cuda, size * MIB) for size in (2, 4, 16, 64)]
    for row in rows:
        print(row)
    document = {"title": "Addresses at which one chunk can be mapped", "where": provenance()}
    write_result(arguments.output, document | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
