# SPDX-License-Identifier: Apache-2.0
"""Recorded traces of allocations: what a program asked of an allocator, event by event.

`read_traces` reads a file, be it an .npz of event arrays or a memory snapshot of PyTorch. Reading
runs no code from the file. `read_work` reads what ``penstock run --record`` wrote: allocations and
all the work that uses them. Needs numpy (the extra ``trace``).
"""

from .events import OP_ALLOCATE, OP_FREE_COMPLETED, OP_FREE_REQUESTED, Trace
from .read import read_traces
from .work import WorkTrace, read_work

__all__ = [
    "OP_ALLOCATE",
    "OP_FREE_COMPLETED",
    "OP_FREE_REQUESTED",
    "Trace",
    "WorkTrace",
    "read_traces",
    "read_work",
]
