# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.memory_stats() from the allocator's own counters.

The names and their nesting are torch's, so that memory_allocated(), memory_summary() and what
programs read themselves go on to work; ``penstock.*`` has what torch's allocator does not know.
A segment is a chunk here. Small and large are told apart by the size of a request, as in torch,
and may lie in the same chunk: of segments and of reserved memory only the sum has a meaning.
"""

from __future__ import annotations

from typing import Any

from penstock.native.api import as_dict, new
from penstock.native.torch_allocator import TorchAllocator

POOLS = ("all", "small_pool", "large_pool")
WHOLE_STATS = ("chunks", "stitched_ranges", "stitched_range_bytes")
COUNTS = "retries out_of_memory stitches stitch_hits stream_waits driver_calls".split()
# torch's name -> ours.
NAMES = {
    "allocation": "allocations",
    "active": "active_blocks",
    "inactive_split": "inactive_blocks",
    "allocated_bytes": "allocated_bytes",
    "reserved_bytes": "reserved_bytes",
    "active_bytes": "active_bytes",
    "inactive_split_bytes": "inactive_bytes",
    "requested_bytes": "requested_bytes",
}


def memory_stats(device: int) -> dict[str, Any]:
    """The statistics of a device, nested as ``torch._C._cuda_memoryStats`` nests them."""
    return as_torch(TorchAllocator(device).stats())


def as_torch(stats: Any) -> dict[str, Any]:
    """A penstock_allocator_stats in torch's form."""
    told: dict[str, Any] = {
        name: dict(zip(POOLS, map(as_dict, getattr(stats, ours)), strict=True))
        for name, ours in NAMES.items()
    }
    chunks, none = as_dict(stats.chunks), as_dict(new("stat"))
    told["segment"] = {"all": chunks, "small_pool": none, "large_pool": none}
    told["oversize_allocations"] = none
    told["oversize_segments"] = none
    told["num_alloc_retries"] = stats.retries
    told["num_ooms"] = stats.out_of_memory
    told["num_sync_all_streams"] = 0
    told["num_device_alloc"] = stats.chunks.allocated
    told["num_device_free"] = stats.chunks.freed
    told["max_split_size"] = -1
    told["penstock"] = {name: as_dict(getattr(stats, name)) for name in WHOLE_STATS}
    told["penstock"] |= {name: getattr(stats, name) for name in COUNTS}
    told["penstock"]["budget_bytes"] = stats.budget
    return told


def memory_fraction(device: int) -> float:
    """The share of the device's memory that the allocator may hold."""
    stats = TorchAllocator(device).stats()
    if not stats.device_total or not stats.budget:
        return 1.0
    share = int(stats.budget) / int(stats.device_total)
    return min(1.0, round(share, 6))  # it was cut to whole bytes
