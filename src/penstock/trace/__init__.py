# SPDX-License-Identifier: Apache-2.0
"""Recorded traces of allocations: what a program asked of an allocator, event by event.

`read_traces` reads a file, be it an .npz of event arrays or a memory snapshot of PyTorch. Reading
runs no code from the file. Needs numpy (the extra ``trace``).
"""

from .events import OP_ALLOCATE, OP_FREE_COMPLETED, OP_FREE_REQUESTED, Trace
from .read import read_traces

__all__ = [
    "OP_ALLOCATE",
    "OP_FREE_COMPLETED",
    "OP_FREE_REQUESTED",
    "Trace",
    "read_traces",
]
