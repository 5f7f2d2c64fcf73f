# SPDX-License-Identifier: Apache-2.0
"""What an attachment holds of the machine, for as long as any tensor lies in it.

A tensor that shares a weight's memory can outlive the attachment: an alias that the program kept,
the destination in the traceback of a loader that raised, a weight whose model was dropped. The
pager, with its addresses and host memory, is closed when the last such tensor has gone.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef

from penstock.errors import PenstockError
from penstock.native import Device

from .contracts import Memory

RETIRED: list[Holding] = []  # released, and still used by tensors
_lock = threading.RLock()  # collection, and with it release(), may begin anywhere


class Holding:
    """The device, the pager and the share of the budget of one attachment.

    Attributes:
        pager: What pages the blocks, once it has been made.
        leave: Takes the attachment's share out of its manager's budget, once there is one.
        storages: What tensors that lie in the pager's memory share.
    """

    def __init__(self, device: Device) -> None:
        self.pager: Memory | None = None
        self.leave: Callable[[], None] = lambda: None
        self.storages: list[StorageWeakRef] = []
        self._device = device

    def release(self) -> None:
        """It is not needed any more: close it, now or when no tensor lies in it."""
        with _lock:
            RETIRED.append(self)
            leave, self.leave = self.leave, lambda: None
            leave()
            close_unused()
            if self in RETIRED and self.pager is not None:
                # What was interrupted within a use stays as large as it is.
                with contextlib.suppress(PenstockError):
                    self.pager.resize(self.pager.smallest())
                if _after_collection not in gc.callbacks:
                    gc.callbacks.append(_after_collection)

    def abandon(self) -> None:
        """In a child process: it is the parent's."""
        if self.pager is not None:
            self.pager.abandon()
        self._device.abandon()
        self.leave = lambda: None

    def _is_used(self) -> bool:
        return any(not storage.expired() for storage in self.storages)

    def _close(self) -> None:
        if self.pager is not None:
            self.pager.close()
        self._device.close()


def close_unused() -> None:
    """Close what has been released and is used by no tensor any more."""
    with _lock:
        for holding in list(RETIRED):
            if not holding._is_used():
                RETIRED.remove(holding)
                holding._close()


def _after_collection(phase: str, info: Any) -> None:
    if phase == "stop":
        close_unused()
        if not RETIRED:
            gc.callbacks.remove(_after_collection)
