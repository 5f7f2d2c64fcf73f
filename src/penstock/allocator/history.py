# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.memory._record_memory_history() and the snapshots that follow from it.

The library keeps the events; this keeps the stacks they were made on, and what the caller asked
to be told. C++ frames are not recorded.

Thread rule: recording begins and ends under a lock; stacks are taken on the allocating threads.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from penstock.native import torch_allocator

from . import snapshot
from .frames import FrameTable
from .trace import ALLOC, FREE_COMPLETED, OOM

# Events that a stack is taken for, by torch's word for it.
_CONTEXTS: dict[str | None, frozenset[int] | None] = {
    None: None,
    "state": frozenset({ALLOC}),
    "alloc": frozenset({ALLOC, OOM}),
    # A completed free may come at any later time, on any thread: it takes the request's stack.
    "all": frozenset(range(8)) - {FREE_COMPLETED},
}
MOST_EVENTS = 2**40  # "sys.maxsize" and the like


class History:
    """What is being recorded in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames = FrameTable(skip=3)
        self._shows_events = False
        self._skipped: frozenset[str] = frozenset()

    def record(
        self,
        enabled: str | bool | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = MOST_EVENTS,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: list[str] | None = None,
        *_: object,
    ) -> None:
        """Begin, change or end recording; the arguments are those of torch."""
        del stacks, compile_context, global_record_annotations
        if enabled not in (None, False, True, "state", "all"):
            raise ValueError(f"expected state to be 'state', 'all', or None, not {enabled!r}")
        if context not in _CONTEXTS:
            raise ValueError(
                f"expected context to be 'state', 'alloc', 'all', or None: {context!r}"
            )
        with self._lock:
            if clear_history or not enabled:
                torch_allocator.record_history(0, None)
            self._shows_events = enabled in (True, "all")
            self._skipped = frozenset(skip_actions or ())
            if enabled:
                wanted = _CONTEXTS[context]
                take = None if wanted is None else _taker(self._frames, wanted)
                torch_allocator.record_history(min(max_entries, MOST_EVENTS), take)

    def record_legacy(
        self,
        enabled: bool,
        record_context: bool = True,
        max_entries: int = 1,
        record_context_alloc: bool = False,
        record_context_cpp: bool = False,
        clear_history: bool = False,
        *_: object,
    ) -> None:
        """The same with torch's former arguments."""
        del record_context_cpp
        context = "all" if record_context_alloc else "state"
        self.record(
            "all" if enabled else None,
            context if record_context else None,
            max_entries=max(1, max_entries),
            clear_history=clear_history,
        )

    def snapshot(self, wanted: tuple[Any, ...] | None = None) -> dict[str, Any]:
        """What ``torch._C._cuda_memorySnapshot`` returns.

        Args:
            wanted: None for everything; (high, low, ...) for the segments of one pool, of which
                (0, 0) stands for all.
        """
        segments: list[dict[str, Any]] = []
        traces: list[list[dict[str, Any]]] = []
        for device in range(torch.cuda.device_count()):
            state = snapshot.state_of(device)
            trace: list[dict[str, Any]] = []
            if wanted is None:
                found, trace = snapshot.snapshot(state, self._frames)
            else:
                pool = None if tuple(wanted[:2]) == (0, 0) else (wanted[0], wanted[1])
                found = snapshot.segments(state, self._frames, pool)
            segments += found
            shown = trace if self._shows_events else []
            traces.append([entry for entry in shown if entry["action"] not in self._skipped])
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": {"backend": "penstock", "expandable_segments": True},
            "external_annotations": [],
            "host_segments": [],
            "host_traces": [],
        }

    def traceback_of(self, address: int) -> list[dict[str, Any]] | None:
        """Where the live block at an address was allocated, as far as that was recorded."""
        for device in range(torch.cuda.device_count()):
            state = snapshot.state_of(device)
            found = snapshot.origin_of(state, address, self._frames)
            if found is not None:
                return found
        return None


def _taker(frames: FrameTable, wanted: frozenset[int]) -> Any:
    def take(event: int) -> int:
        return frames.take() if event in wanted else 0

    return take
