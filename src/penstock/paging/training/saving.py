# SPDX-License-Identifier: Apache-2.0
"""Hooks on what autograd saves: blocks leave for room in forward, and come back in backward.

Oldest first leave: they are needed last. Where more is in use than the level allows, as many leave
as are too many; those that left in the step before are copied out as early as they can be, so that
their memory is free when it is wanted. In backward the newest that is away comes first, as soon as
the level has room for it. The level is another one from where backward first needs what is away, or
computes a region again (room.py).

Hooks apply to what the thread saves while they are the innermost: those that the program has put
within a forward go before these. What a checkpointed region saves when it is computed again comes
here by recomputation.py.

Thread rule: as of saved.py.
"""

from __future__ import annotations

import sys
import weakref
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from penstock.errors import OutOfMemory
from penstock.units import MIB

from ..watch import has_storage
from . import recomputation
from .copies import Copies
from .host_buffers import HostBuffers
from .recomputation import StandIn
from .room import Levels
from .saved import Block, Saved

# Bytes of a storage: below, a copy takes no longer than the calls that begin it (10 us at 50 GB/s).
LEAST = MIB // 2
CANDIDATES = 64  # blocks that are asked whether they may leave, before it is taken that none may
LOOK_EVERY = 1 / 64  # of the budget: what may change before it is asked again what is in use

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]
_PLAIN = (torch.Tensor, nn.Parameter)


def may_push() -> bool:
    """Whether hooks can be put here, and would take the place of none of the program's."""
    return (
        _autograd._saved_tensors_hooks_is_enabled()
        and _autograd._top_saved_tensors_default_hooks(False) is None
    )


def _unseen() -> AbstractContextManager[Any]:
    """A region may be computed again under a mode that compares operators with forward's."""
    return nullcontext() if _get_current_dispatch_mode() is None else _disable_current_modes()


class Saving:
    """What autograd saves in the passes of one model.

    Attributes:
        bytes_out: Copied out since the step began.
        bytes_in: Copied in.
        left: Bytes that were freed on the device, of what was copied out in the step.
        left_again: Of these the bytes that a recomputation had saved.
        saved: Bytes of the blocks that there are.
        most_saved: The most since the step began.
        most_there: The most that were on the device.

    Args:
        device: PyTorch's device.
        copies: Carry bytes.
        buffers: Host memory for them.
        live: Tells the bytes of all tensors on the device.
        stream: Gives the raw handle of the stream that kernels go to now.
        budget: Bytes.
        stay: The model's own.
    """

    def __init__(
        self,
        device: torch.device,
        copies: Copies,
        buffers: HostBuffers,
        *,
        live: Callable[[], int],
        stream: Callable[[], int],
        budget: int,
        stay: Iterable[torch.Tensor],
    ) -> None:
        self.bytes_out = self.bytes_in = self.left = self.left_again = 0
        self.saved = self.most_saved = self.most_there = 0
        self._device = device
        self._copies = copies
        self._buffers = buffers
        self._ask_live = live
        self._stream = stream
        self._look_after = int(budget * LOOK_EVERY)
        self._own = {x.untyped_storage()._cdata for x in stay if has_storage(x)}
        self._inputs: set[int] = set()
        self._hooks = (self._pack, self._unpack)
        self._pushed = False
        self._recomputing = 0  # regions, one within the other
        self._again = 0  # bytes that the latest of them has taken
        self._beside = 0  # of tensors beside these
        self._home = 0  # the stream of the pass, its handle
        self._source: Any = None  # and it
        self._level = self._later = self._early = 0
        self._turn: Callable[[], None] | None = None
        self._number = 0
        self._backward = 0
        # By a storage's address: it, its block, and the version that it was saved at.
        self._known: dict[int, tuple[weakref.ref[Any], weakref.ref[Block], int]] = {}
        self._there: dict[int, weakref.ref[Block]] = {}  # by number, never away yet
        self._leaving: dict[int, weakref.ref[Block]] = {}  # of these, copied out already
        self._back: dict[int, weakref.ref[Block]] = {}
        self._away: list[tuple[int, weakref.ref[Block]]] = []  # by number
        self._gone: deque[tuple[int, int]] = deque()
        self._on_device = 0
        self._live = self._changed = self._most = 0

    # ---- Passes ----------------------------------------------------------------------------

    def begin(
        self, levels: Levels, inputs: Iterable[torch.Tensor], turn: Callable[[], None]
    ) -> None:
        """A forward begins.

        Args:
            levels: What it may have.
            inputs: What the caller has, and keeps.
            turn: Called when backward first needs what is away, or computes a region again.
        """
        self._level, self._later, self._early = levels.level, levels.later, levels.early
        self._turn = turn
        self._inputs = {x.untyped_storage()._cdata for x in inputs if has_storage(x)}
        self._home, self._source = self._stream(), self._copies.here()
        self._forget()
        if not self._is_innermost():
            _autograd._push_saved_tensors_default_hooks(*self._hooks)
        self._pushed = True
        recomputation.enter(self)
        self._look()

    def end(self) -> None:
        """It is over, with or without an error."""
        self._inputs = set()
        if self._pushed:
            recomputation.enter(None)
            if self._is_innermost():
                _autograd._pop_saved_tensors_default_hooks()
        self._pushed = False

    def close(self) -> None:
        """No budget is there any more: nothing leaves, whoever runs a backward yet."""
        self.end()
        self._level, self._later, self._early = sys.maxsize, sys.maxsize, 0

    @contextmanager
    def recomputing(self, *, push: bool) -> Iterator[None]:
        """See recomputation.Pages."""
        push = push and may_push()
        self._turns()
        place = self._home, self._source
        self._home, self._source = self._stream(), self._copies.here()
        before = recomputation.enter(self)
        self.settle()
        self._look()
        before_it, self._beside, self._most = self._most, self._live, self._live
        self._recomputing += 1
        if push:
            _autograd._push_saved_tensors_default_hooks(*self._hooks)
        try:
            yield
        finally:
            if push and self._is_innermost():
                _autograd._pop_saved_tensors_default_hooks()
            self._recomputing -= 1
            self.settle()
            self._look()
            self._again = max(self._most, self._live) - self._beside
            self._most = max(self._most, before_it)
            recomputation.enter(before)
            self._home, self._source = place

    def _turns(self) -> None:
        """The end of forward is over, and what it alone needs has gone."""
        if self._turn is not None and not self._pushed:
            turn, self._turn = self._turn, None
            self._level = self._later
            turn()

    def _is_innermost(self) -> bool:
        return bool(_autograd._top_saved_tensors_default_hooks(False) == self._hooks)

    def backward_ends(self) -> None:
        """What it has used may be used by none that follows for long."""
        self._backward += 1

    def step_ends(self) -> None:
        """Begin to count anew."""
        self.settle()
        self.bytes_out = self.bytes_in = self.left = self.left_again = 0
        self.most_saved, self.most_there = self.saved, self._on_device

    def _forget(self) -> None:
        """What has gone, of those of former passes: not every graph sees a backward."""
        self._known = {key: known for key, known in self._known.items() if known[0]() is not None}
        for some in (self._there, self._leaving, self._back):
            for number in [number for number, block in some.items() if block() is None]:
                del some[number]
        self._away = [entry for entry in self._away if entry[1]() is not None]

    # ---- Hooks -----------------------------------------------------------------------------

    def _pack(self, tensor: torch.Tensor) -> Saved:
        storage = self._pageable(tensor)
        if storage is None:
            return Saved(tensor, None)
        self.settle()
        saved = Saved(tensor, self._block_of(storage, tensor._version))
        self._saved_another()
        return saved

    def pack_again(self, tensor: torch.Tensor) -> StandIn | torch.Tensor:
        """See recomputation.Pages.

        Nor does torch's recomputation ask whether a tensor has been changed since.
        """
        storage = self._pageable(tensor)
        if storage is None:
            return tensor
        self.settle()
        with _unseen():
            saved = Saved(tensor, self._block_of(storage, tensor._version), checked=False)
            self._saved_another()
        return StandIn(tensor, partial(self._unpack_again, saved))

    def _unpack_again(self, saved: Saved) -> torch.Tensor:
        with _unseen():
            return self._unpack(saved)

    def _unpack(self, saved: Saved) -> torch.Tensor:
        block = saved.block
        if block is None:
            return saved.get()
        self.settle()
        block.used = self._backward
        if block.away:
            self._turns()
        self._release(block.nbytes if block.away else 0, but=block)
        if block.away:
            self._fetch(block)
        tensor = saved.get()
        if not self._pushed and not self._recomputing:
            self._fetch_ahead()
        return tensor

    def _pageable(self, tensor: torch.Tensor) -> torch.UntypedStorage | None:
        """The storage, of those tensors that may leave."""
        if (
            not (self._pushed or self._recomputing)
            or type(tensor) not in _PLAIN
            or tensor.device != self._device
            or tensor.layout is not torch.strided
            or (tensor.is_leaf and tensor.requires_grad)
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.is_quantized
            or self._stream() != self._home
        ):
            return None
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # one of a transform, which has none
            return None
        key = storage._cdata
        if storage.nbytes() < LEAST or key in self._own or key in self._inputs:
            return None
        return storage

    def _block_of(self, storage: torch.UntypedStorage, version: int) -> Block:
        self._number += 1
        known = self._known.get(storage._cdata)
        if known is not None and known[0]() is storage and known[2] == version:
            block = known[1]()
            if block is not None:
                for some in (self._there, self._leaving, self._back):
                    if block.number in some:
                        some[self._number] = some.pop(block.number)
                block.number = self._number
                return block
        where = self._source, self._copies, self._buffers, self._ended
        block = Block(storage, self._number, *where)
        block.again = self._recomputing > 0
        reference = weakref.ref(block)
        self._known[storage._cdata] = weakref.ref(storage), reference, version
        self._there[self._number] = reference
        self.saved += block.nbytes
        self.most_saved = max(self.most_saved, self.saved)
        self._count(block.nbytes)
        return block

    def _ended(self, nbytes: int, there: int) -> None:
        self._gone.append((nbytes, there))

    def settle(self) -> None:
        """Count what has ended since."""
        while self._gone:
            nbytes, there = self._gone.popleft()
            self.saved -= nbytes
            self._count(-there)

    def _count(self, nbytes: int) -> None:
        """So many bytes of blocks more are on the device."""
        self._on_device += nbytes
        self.most_there = max(self.most_there, self._on_device)
        self._live += nbytes
        self._changed += abs(nbytes)

    def _look(self) -> None:
        self._live, self._changed = self._ask_live(), 0
        self._most = max(self._most, self._live)

    # ---- Out -------------------------------------------------------------------------------

    def _saved_another(self) -> None:
        self._release(0)
        while not self._recomputing and self.bytes_out < self._early:
            block = next(self._candidates(self._there), None)
            if block is None:
                return
            self._start(block)

    def make_room(self, nbytes: int) -> bool:
        """Let so many bytes leave, or what can, whatever the level; whether any have."""
        self.settle()
        before = self._on_device
        self._leave(nbytes)
        return self._on_device < before

    def _release(self, more: int, but: Block | None = None) -> None:
        """Let blocks leave, except one, until so many bytes more are within the level."""
        if self._live + more > self._level or self._changed > self._look_after:
            self._look()
        self._leave(self._live + more - self._level, but)

    def _leave(self, over: int, but: Block | None = None) -> None:
        if over <= 0:
            return
        for block in self._oldest():
            if block is but:
                continue
            self._start(block)
            if self._leaving.pop(block.number, None) is not None:
                self.left += block.nbytes
                self.left_again += block.nbytes if block.again else 0
            self._back.pop(block.number, None)
            block.finish_out()
            insort(self._away, (block.number, weakref.ref(block)), key=lambda entry: entry[0])
            self._count(-block.nbytes)
            over -= block.nbytes
            if over <= 0:
                return

    def _start(self, block: Block) -> None:
        if self._there.pop(block.number, None) is not None:
            block.start_out()
            self.bytes_out += block.nbytes
            self._leaving[block.number] = weakref.ref(block)

    def _oldest(self) -> Iterator[Block]:
        """The blocks that may leave now, oldest first."""
        yield from self._candidates(self._leaving)
        if self._back:
            some = {**self._back, **self._there}
            yield from self._candidates({number: some[number] for number in sorted(some)})
        else:
            yield from self._candidates(self._there)
        # What this backward has used goes with its node, unless the graph is retained.
        some = {**self._leaving, **self._back, **self._there}
        yield from self._candidates(
            {number: some[number] for number in sorted(some, reverse=True)}, used=True
        )

    def _candidates(
        self, some: dict[int, weakref.ref[Block]], *, used: bool = False
    ) -> Iterator[Block]:
        """Of these the ones that may leave, and that this backward has used or has not."""
        asked = 0
        for number, reference in list(islice(some.items(), 4 * CANDIDATES)):
            block = reference()
            if block is None:
                self._there.pop(number, None)
                self._leaving.pop(number, None)
                self._back.pop(number, None)
                continue
            if (block.used == self._backward) == used and block.may_leave():
                yield block
                continue
            asked += 1
            if asked == CANDIDATES:
                return

    # ---- In --------------------------------------------------------------------------------

    def _fetch(self, block: Block) -> None:
        storage = block.start_in()
        # A recomputation saves what it was given, which is no second block.
        self._known[storage._cdata] = weakref.ref(storage), weakref.ref(block), block.version
        self._back[block.number] = weakref.ref(block)
        self.bytes_in += block.nbytes
        self._count(block.nbytes)

    def _fetch_ahead(self) -> None:
        """What will be needed next, as far as there is room.

        What gradients take at once is left, and what the next recomputation will save if it is like
        the latest: else what has just come would leave again for them.
        """
        if self._changed > self._look_after:
            self._look()
        level = self._level - self._look_after
        while self._away:
            block = self._away[-1][1]()
            if block is not None and block.away:
                if max(self._live, self._beside + self._again) + block.nbytes > level:
                    return
                with suppress(OutOfMemory, torch.OutOfMemoryError):
                    self._fetch(block)
                    self._beside += block.nbytes
                if block.away:
                    return  # there is less room than was thought
            self._away.pop()
