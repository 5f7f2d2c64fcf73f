# SPDX-License-Identifier: Apache-2.0
"""What tensors take of an emulated GPU: as far as a budget is concerned, its allocator.

Tensors lie in ordinary host memory there. A dispatch mode follows the storages that operators make
within passes: each counts in the budget from its operator's end to its own, and pages leave for it,
or the operator is out of memory. What operators take and give back within themselves is not seen,
nor what the program makes between passes, which may be meant for the host.

Thread rule: a pass on one thread at a time; storages may go on any.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from penstock.errors import OutOfMemory
from penstock.native import Budget
from penstock.units import format_bytes

from .leaves import tree_leaves
from .modes import PassMode, run
from .watch import has_storage


class EmulatedMemory:
    """The tensors on one emulated GPU.

    Attributes:
        cuda: That it is none.
    """

    cuda = False

    def __init__(self) -> None:
        self._who_has_what: Callable[[], str] = str
        self._budget: Budget | None = None
        # By the address of a storage: what tells of its end, and the bytes that count.
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._mode: StorageMode | None = None
        self._owner = os.getpid()

    # ---- As PyTorch's allocator ------------------------------------------------------------

    def count_in(self, budget: Budget) -> None:
        """From here on what passes make counts there."""
        self._budget = budget
        budget.set_reclaim(self.empty_cache)

    def leave(self, budget: Budget) -> None:
        """It counts nowhere any more.

        Of a model that nobody has any more this may be amid an operator, where no mode can be left.
        """
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.over = True
        held = self.held()
        self._live.clear()
        self._budget = None
        budget.put_back(held)

    def held(self) -> int:
        """Bytes of tensors: nothing is cached."""
        return sum(nbytes for _, nbytes in list(self._live.values()))

    live = held

    def taken(self, locked: int) -> int:
        """Nothing is known by other ways than counting."""
        return 0

    def empty_cache(self) -> None:
        """Count what has been resized by no operator with the bytes that it has now."""
        for reference, nbytes in list(self._live.values()):
            storage = reference()
            if storage is not None and storage.nbytes() < nbytes:
                self.count(storage)

    def synchronize(self) -> None:
        """Operators are over when they return."""

    # ---- Passes ----------------------------------------------------------------------------

    def pass_begins(self, who_has_what: Callable[[], str], *, anew: bool = True) -> None:
        """What operators of this thread make counts, until the pass ends.

        Args:
            who_has_what: Tells the budget, and who has how much of it, for an error.
            anew: Also where a pass is under way, of which this one else is a part.
        """
        if self._mode is not None and not anew:
            return
        self.pass_ends()
        self._who_has_what = who_has_what
        self._mode = StorageMode(self)
        self._mode.__enter__()

    def pass_ends(self) -> None:
        """What they make counts no more; what they have made does as long as it is there."""
        mode, self._mode, self._who_has_what = self._mode, None, str
        if mode is not None:
            mode.leave()

    def count(self, storage: torch.UntypedStorage) -> None:
        """A storage has been made or resized: it counts with the bytes that it has now.

        Raises:
            OutOfMemory: If they do not fit beside what is in use; the storage counts as before.
        """
        if self._budget is None:
            return
        key, nbytes = storage._cdata, storage.nbytes()
        more = nbytes - self._live[key][1] if key in self._live else nbytes
        if more > 0:
            self._take(self._budget, more)
        else:
            self._budget.put_back(-more)
        # A storage's Python object lives as long as the storage, and so does what refers to it.
        self._live[key] = weakref.ref(storage, lambda _: self._ended(key)), nbytes

    def _take(self, budget: Budget, nbytes: int) -> None:
        try:
            budget.take(nbytes)
            return
        except OutOfMemory:
            self.empty_cache()
        try:
            budget.take(nbytes)
        except OutOfMemory as error:
            shares = budget.shares()
            needed = shares.pagers + shares.others + nbytes
            raise OutOfMemory(
                f"an operator made {format_bytes(nbytes)}, with which {format_bytes(needed)} are "
                f"in use, and {self._who_has_what()}",
                remedy="a smaller input, or a larger gpu_memory",
                needed_bytes=needed,
                budget_bytes=shares.limit,
            ) from error

    def _ended(self, key: int) -> None:
        known = self._live.pop(key, None)
        # A child process has a copy of the budget, whose locks nobody may ever release there.
        if known is not None and self._budget is not None and os.getpid() == self._owner:
            self._budget.put_back(known[1])


@cache
def _may_return_an_argument(func: Any) -> bool:
    schema = getattr(func, "_schema", None)  # higher-order operators have none
    return schema is None or any(value.alias_info is not None for value in schema.returns)


def _storages(values: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in (values,) if isinstance(values, torch.Tensor) else tree_leaves(values):
        if isinstance(leaf, torch.UntypedStorage):
            yield leaf
        elif isinstance(leaf, torch.Tensor) and has_storage(leaf) and leaf.is_cpu:
            yield leaf.untyped_storage()


class StorageMode(PassMode):
    """Counts the storages that operators make or resize.

    Args:
        memory: Where they count.
    """

    def __init__(self, memory: EmulatedMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.over:
            return run(func, args, kwargs)
        # What a view, or a change in place, returns had its storage before.
        given = _storages((args, kwargs)) if _may_return_an_argument(func) else ()
        before = {storage._cdata: storage.nbytes() for storage in given}
        result = run(func, args, kwargs)
        for storage in _storages(result):
            if before.get(storage._cdata) != storage.nbytes():
                before[storage._cdata] = storage.nbytes()
                self._memory.count(storage)
        return result
