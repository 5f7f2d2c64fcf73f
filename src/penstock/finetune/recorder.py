# SPDX-License-Identifier: Apache-2.0
"""The allocations of a program on the CPU, as a GPU's allocator would have been asked for them.

Where there is no GPU there is no CUDA allocator to ask. But tensors come and go as they would on
one, so a dispatch mode follows the births and deaths of their storages, and the trace of them is
replayed on the real allocator (`penstock.native.replay`). What an operator allocates and gives
back within itself (a workspace) is not seen.

Thread rule: one thread, that of the training; on the CPU the backward pass is on it too.
"""

from __future__ import annotations

import time
import weakref
from array import array
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from penstock.trace.events import OP_ALLOCATE, OP_FREE_COMPLETED, OP_FREE_REQUESTED, make_trace

if TYPE_CHECKING:
    from penstock.trace import Trace


class AllocationRecorder(TorchDispatchMode):
    """Records while it is entered as a context; may be entered again."""

    def __init__(self) -> None:
        super().__init__()
        self._op, self._id = array("B"), array("I")
        self._size, self._time = array("Q"), array("Q")
        self._begin = time.perf_counter_ns()
        # Address of a storage -> (its allocation, its bytes, what tells of its end).
        self._live: dict[int, tuple[int, int, Any]] = {}
        self._next = 0
        self._resize: Callable[..., Any] | None = None

    def __len__(self) -> int:
        return len(self._op)

    @property
    def alive_bytes(self) -> int:
        """Bytes of all storages that are alive now."""
        return sum(size for _, size, _ in self._live.values())

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Take what is alive already as allocated now."""
        for tensor in tensors:
            self._born(tensor)

    def trace(self, name: str) -> Trace:
        """What was recorded so far.

        Args:
            name: What messages call it.
        """
        columns = {
            "op": np.array(self._op),
            "id": np.array(self._id),
            "size": np.array(self._size),
            "stream": np.zeros(len(self._op), np.uint32),
            "time_us": np.array(self._time),
        }
        return make_trace(name, columns)

    def __enter__(self) -> AllocationRecorder:
        """Begin to record; what resizes a storage in place (FSDP2) is seen as well."""
        recorder, original = self, torch.UntypedStorage.resize_
        self._resize = original

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            recorder._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        super().__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign,assignment]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator; its results may be new storages."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._born(leaf, made_by_torch=True)
        return result

    def _born(self, tensor: Tensor, *, made_by_torch: bool = False) -> None:
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if local.device.type != "cpu":
            return
        storage = local.untyped_storage()
        if storage._cdata in self._live or storage.nbytes() == 0:
            return
        # What cannot be resized was not allocated by torch: it is a view of the pager's memory.
        if storage.resizable() or not made_by_torch:
            self._add(storage)

    def _add(self, storage: Any) -> None:
        key = storage._cdata
        # A storage's Python object lives as long as the storage, and so does what refers to it.
        ending = weakref.ref(storage, lambda _: self._died(key))
        number, size = self._next, storage.nbytes()
        self._next += 1
        self._live[key] = (number, size, ending)
        self._event(OP_ALLOCATE, number, size)

    def _died(self, key: int) -> None:
        known = self._live.pop(key, None)
        if known is not None:
            self._event(OP_FREE_REQUESTED, known[0], known[1])
            self._event(OP_FREE_COMPLETED, known[0], known[1])

    def _resized(self, storage: Any) -> None:
        key = storage._cdata
        known = self._live.get(key)
        if known is not None and known[1] == storage.nbytes():
            return
        self._died(key)
        if storage.nbytes() and storage.device.type == "cpu":
            self._add(storage)

    def _event(self, op: int, number: int, size: int) -> None:
        self._op.append(op)
        self._id.append(number)
        self._size.append(size)
        self._time.append((time.perf_counter_ns() - self._begin) // 1000)
