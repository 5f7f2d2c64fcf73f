# SPDX-License-Identifier: Apache-2.0
"""The same allocator behind torch.cuda.MemPool: for CUDA graph trees and shared tensors.

torch's own allocator stays in place, with all that it can do, and asks Penstock for the segments
(2 MiB, 20 MiB, or a large tensor) of what is allocated within the pool. So torch decides how
tensors are packed into segments, and Penstock only what backs a segment; a pool returns its
segments when it is dropped, not on empty_cache(); and only threads that entered the pool use it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from penstock.native import torch_allocator

# torch calls into them until the process ends.
_kept: list[Any] = []


def make_pool() -> torch.cuda.MemPool:
    """A pool whose segments come from Penstock."""
    addresses = map(torch_allocator.entry_point, torch_allocator.POOL_CONSTRUCTOR)
    allocator = torch._C._cuda_customAllocator(*addresses)
    _kept.append(allocator)
    return torch.cuda.MemPool(allocator)


def enter_for_good(pool: torch.cuda.MemPool) -> None:
    """Let the calling thread allocate from the pool on the current device from now on."""
    inside: AbstractContextManager[None] = torch.cuda.use_mem_pool(pool)
    inside.__enter__()
    _kept.append((pool, inside))
