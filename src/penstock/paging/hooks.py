# SPDX-License-Identifier: Apache-2.0
"""Tells the pager what is about to be used: calls of modules, and reads of parameters beside them.

A module that owns paged blocks is a use: begin before its forward, end after it, also when it
raises. A module that is called from outside, such as an encoder alone, is a pass of its own. A
parameter that is read while no use of it is running (a functional call on ``other.weight``, as
nn.MultiheadAttention does with its output projection, or experts applied with F.linear) begins a
use of its own, which lasts until the module that runs is over, or until others need the room; then
it is given at its host copy. So is one that is read outside every pass.

What is used without having been read from its module (a list of weights, a closure) a dispatch mode
looks for (watch.py): where inputs, mode, the way through the modules or who keeps weights are new.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from penstock.errors import OutOfMemory
from penstock.native import Pager
from penstock.units import format_bytes

from .blocks import Block, Home, Models
from .forwards import Forwards, bound_like, own_forward
from .gather import Gathers
from .joint import Joints, joints
from .leaves import tree_leaves
from .looks import only_asks, only_looks, only_saves
from .modes import leave_over
from .on_host import OnHost
from .running import Running
from .store import BlockStore
from .tables import TABLES
from .turns import Turn
from .unwritten import Unwritten
from .use import NO_USE, Use
from .uses import Uses
from .watch import WATCHED, AccessWatch, block_of
from .wrappers import plain_leaves, plain_parts

if TYPE_CHECKING:
    from .attach import Attachment

MOST_SEARCHES = 64  # passes watched for the way they took; experts take another each time
READS_AT_ONCE = 4  # times the bytes of one read, where no module's own use is larger


class UseHooks:
    """Declares the uses of one attached model.

    Attributes:
        signature: Of the inputs of the pass that begins; one that is new is watched.
        on_host: The blocks that are given at their host copies.
        gathers: The modules that read few rows of theirs.

    Args:
        model: The root.
        store: Its blocks, placed.
        pager: Where uses are declared.
        stream: Gives the raw handle of the stream that kernels go to now.
        turn: The right to run the model.
        passes: Told of passes through a part of the model.
        outside: How many references others had to a tensor before, by its id().
        most_jointly: Bytes of modules that are declared as one use.
        always_watch: Check every operator in every pass.
    """

    def __init__(
        self,
        model: nn.Module,
        store: BlockStore,
        pager: Pager,
        stream: Callable[[], int],
        *,
        turn: Turn,
        passes: Attachment,
        outside: Mapping[int, int],
        most_jointly: int,
        always_watch: bool,
    ) -> None:
        self._store = store
        self._pager = pager
        self._stream = stream
        self._turn = turn
        self._passes = passes
        self._always_watch = always_watch
        self._names = {module: name for name, module in model.named_modules()}
        paged = [block for block in store.blocks if block.home is Home.PAGED]
        self._by_tensor = {id(t): block for block in paged for t in store.tensors(block)}
        self._by_pointer = {block.address: block for block in paged}
        self.on_host = OnHost(store, outside)
        self._uses = Uses(store, pager, self._by_tensor, self.on_host)
        self._own = self._uses.of_modules(self._names, paged)
        self._running = Running(
            pager, stream, self._end, partial(self.on_host.give, asked_for=False)
        )
        self.gathers = Gathers(self._own, self._uses, store, self.on_host, self._running)
        self._gathering = frozenset(use for use in self._own.values() if use in self.gathers)
        # Within which reads last, and which may be called alone.
        scopes = [m for m in self._names if m not in (model, *self._own) and any(m.children())]
        self._scopes = {module: Use(self._names[module], frozenset()) for module in scopes}
        found = joints(self._names, self._own, apart=self.gathers, most_bytes=most_jointly)
        for module, parts in found:
            self._scopes[module] = self._uses.join(self._names[module], parts)
        self._several = isinstance(model, Models)
        self._reads: dict[Block, Use] = {}
        self._unwritten = Unwritten(self._read_only, self.on_host)
        self._largest = max((use.nbytes for use in self._own.values()), default=0)
        self._forwards = Forwards()
        joined = {use: module for module, use in self._scopes.items() if use.parts}
        self._joints = Joints(joined, self._forwards, self._wrap)
        self._armed = False
        self._in_pass = False
        self._broken_off = False  # something raised in a use
        self._watch: AccessWatch | None = None
        self.signature: Hashable = None
        self._signatures: Counter[Hashable] = Counter()  # how many passes of each were watched
        self._steps: set[tuple[int, int]] = set()  # pairs of uses that followed one another
        self._last = NO_USE
        self._searches = 0
        self._written: set[Block] = set()  # seen by the watch within the running uses
        self._child = False

    def _read_only(self) -> Iterable[tuple[Block, torch.Tensor]]:
        paged = self._by_pointer.values()
        return [(b, t) for b in paged if not b.written for t in self._store.tensors(b)]

    # ---- What is asked of hooks ------------------------------------------------------------

    def name_of(self, use: int) -> str:
        """The module path behind a use number, for reports."""
        return self._uses.name_of(use)

    def returned(self, output: Any) -> None:
        """A pass gave this to its caller: weights, and views of them, lie at the host copy."""
        if not self._armed:
            return
        for leaf in plain_leaves(output):
            if (block := block_of(leaf, self._by_pointer)) is not None:
                self.on_host.give(block, asked_for=True)
                if id(leaf) not in self._by_tensor:
                    leaf.data = self._store.at_host(block, leaf)

    def arm(self) -> None:
        """Wrap the forward of every module that owns paged blocks, or others that do."""
        if self._armed:
            return
        self._armed = True
        for module, use in (*self._own.items(), *self._scopes.items()):
            if use.parts:
                use.tables = [table for part in use.parts for table in part.tables]
            elif use.blocks:
                use.tables = [table for name in TABLES if (table := module.__dict__[name])]
            use.runs, use.closed = 0, False
            self._wrap(module)

    def _wrap(self, module: nn.Module) -> None:
        if (use := self._own.get(module) or self._scopes.get(module)) is not None:
            self._forwards.replace(module, self._declared(module, use))

    def disarm(self) -> None:
        """Take them off: nothing is declared, which is right only while everything stays."""
        self._armed = False
        self._unwritten.forget()
        self.on_host.take_all_back()
        self._forwards.restore()

    def remove(self) -> None:
        """Take every hook off, also in the middle of a pass that was interrupted."""
        self._abandon()
        if not self._child:
            self.disarm()

    def pass_begins(self) -> None:
        """The root's forward starts."""
        self._begin_anew()
        self.gathers.pass_begins()
        leave_over()
        if not self._armed:
            return
        self._unwritten.check()
        self.on_host.take_all_back()
        self._unwritten.forget()
        self._in_pass = True
        self._watch_new()

    def pass_ends(self) -> None:
        """The root's forward is over, with or without an error."""
        self._abandon()
        if not self._armed:
            return  # everything is where it should be
        self._unwritten.remember()
        self.on_host.give_held()

    def in_forward(self) -> bool:
        """Whether the model or a part of it is running, and may replace what it has."""
        return self._in_pass or bool(self._running)

    def after_fork(self) -> None:
        """In a child process: nothing of the parent's is read."""
        self._child = True
        while self._running:
            self._running.pop()[0].leave()
        self._watch = None
        self._none_is_open()

    def _none_is_open(self) -> None:
        for use in (*self._own.values(), *self._scopes.values()):
            use.open = 0
            for table in use.tables:
                table.open = 0

    def _begin_anew(self) -> None:
        """No use runs; an interrupt may have come anywhere, also while one was begun or ended."""
        broken_off = self._broken_off or self._in_pass or bool(self._running)
        self._abandon()
        if broken_off:
            self._broken_off = False
            self._none_is_open()

    def _abandon(self) -> None:
        """End what still runs: after an error in a hook, or an interrupt, for which none runs."""
        while self._running:
            self._running.close()
        self._stop_watching()
        self._in_pass = False
        self._last = NO_USE
        self._running.slots = 0

    # ---- Around forward --------------------------------------------------------------------

    def _declared(self, module: nn.Module, use: Use) -> Callable[..., Any]:
        """A forward in the place of the module's that begins and ends the use.

        PyTorch's own hooks take the launching thread longer than this does.
        """
        forward, turn, running = module.forward, self._turn, self._running
        kind = None if "forward" in module.__dict__ else type(module).forward

        def declared(called: nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal forward, kind
            if called is not module:  # somebody has bound this to another one
                return forward.__func__(called, *args, **kwargs)  # type: ignore[attr-defined]
            if kind is not None and type(module).forward is not kind:  # patched, or another class
                forward, kind = own_forward(module), type(module).forward
            joint = use.joint
            if turn.owner == get_ident():
                if joint is not None and joint.open:
                    joint.missing.discard(use)
                    return forward(*args, **kwargs)
                if use.number < 0 and (running or self._in_pass):
                    return self._within(forward, args, kwargs)
            if not self._armed:  # somebody has wrapped it in turn
                return forward(*args, **kwargs)
            self._begins(module, use, args, kwargs)
            try:
                result = forward(*args, **kwargs)
            except BaseException:
                self._broken_off = True
                self._ends(use, whole=False)
                raise
            self._ends(use, whole=True)
            if use.parts and not use.closed:
                self._joints.ran_whole(use)
            return result

        return bound_like(forward, declared, module)

    def _within(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A module that owns nothing: what is read inside it ends with it."""
        running, before = self._running, len(self._running)
        try:
            return forward(*args, **kwargs)
        finally:
            while len(running) > before:
                self._running.close()

    # No more is called at each use than has something to do: many models wait for this thread.
    def _begins(self, module: nn.Module, use: Use, args: Any, kwargs: Any) -> None:
        if outermost := self._turn.owner != get_ident():
            self._outermost(use, module, args, kwargs)
        part = use
        if use in self._gathering:
            part = self.gathers.part(use, args, kwargs)
        if part.number >= 0:
            if (step := (self._last, use.number)) not in self._steps:
                self._new_step(step)
            self._last = use.number
            if part is use and self._gathering:
                self.gathers.declared(use)
            if self.on_host.given:
                self.on_host.take_back(part.blocks)
            if use.parts and not use.closed:
                use.missing.update(use.parts)
            if self._running and self._running.reads():
                self._running.release_reads(lambda: not self._running.fits(part))
            try:
                self._running.begin(part)
            except OutOfMemory as error:
                if not part.parts:
                    explained = self._passes.out_of_memory(error)
                    if outermost:
                        self._part_ends()
                    raise explained from error
                self._split(part)
        if part.number < 0:
            self._running.append((part, []))
        part.enter()
        (part.whole or part).open += 1
        for table in part.tables:
            table.open += 1
        for leaf in tree_leaves((args, kwargs)) if outermost else ():
            self.read(leaf)  # a weight that the caller has, and gives to this part

    def _ends(self, use: Use, *, whole: bool) -> None:
        """The module's forward has returned, or raised; what was read inside it ends with it."""
        running = self._running
        if use.open:
            while use not in (running[-1][0], running[-1][0].whole):
                self._running.close()
            self._running.close()
            if whole and use.missing:
                self._split(use)
        if not running and not self._in_pass:
            self._part_ends()

    def _part_ends(self) -> None:
        self._stop_watching()
        self.on_host.give_held()
        self._passes.part_ends()
        self._turn.release()

    def _outermost(self, use: Use, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called that is not within a pass of this thread's."""
        whole = self._several and "." not in use.name
        self._turn.take_or_refuse(f"{use.name} is called", id(sys._getframe(2)), wait=whole)
        try:
            self._begin_anew()
            self.gathers.pass_begins()
            if self.on_host.given:
                self._unwritten.forget()
            self.on_host.take_all_back()
            self._passes.part_begins(use.name, module, args, kwargs)
            self._watch_new()
        except BaseException:
            self._turn.release()
            raise

    def _split(self, use: Use) -> None:
        self._joints.open_up(use)
        self._uses.split(use)

    def _end(self, use: Use, versions: list[int]) -> None:
        """What it wrote is known to have been written."""
        use.leave()
        if not use.is_read:
            (use.whole or use).open -= 1
            for table in use.tables:
                table.open -= 1
        if (number := use.number) < 0:
            return
        now = [tensor._version for tensor in use.tensors]
        if now != versions or self._written:
            self._wrote(use, versions, now)
        if self._passes.frees_casts:
            torch.clear_autocast_cache()
        self._pager.end(number, self._stream())

    def _wrote(self, use: Use, versions: list[int], now: list[int]) -> None:
        """Some of a use's blocks may have been written while it ran."""
        pairs = zip(use.tensors, versions, now, strict=True)
        changed = (tensor for tensor, before, after in pairs if after != before)
        written = {self._by_tensor[id(tensor)] for tensor in changed} | self._written & use.blocks
        if any(not block.written for block in written):
            for block in written:
                self._store.unpack(block)
                block.written = True
            self._uses.declare(use)
            self._unwritten.collect()
            self._pager.begin(use.number, self._stream())
            self._pager.end(use.number, self._stream())

    # ---- Reads -----------------------------------------------------------------------------

    def read(self, tensor: torch.Tensor) -> None:
        """A tensor is asked for while no use of its module is running."""
        for block in self._uncovered(tensor):
            if only_asks(sys._getframe(1)):
                return
            self._joints.reads(block)
            if self.in_forward():
                self._read(block)
            else:
                self.on_host.give(block, asked_for=True)

    def listed(self, tensor: torch.Tensor) -> None:
        """Somebody walks through the tensors: mostly for what they are, not what they hold."""
        frame = sys._getframe(1)
        for block in () if only_looks(frame) else self._uncovered(tensor):
            if block.encoded and only_saves(frame):
                return
            self.on_host.give(block, asked_for=not self.in_forward())

    def _uncovered(self, tensor: torch.Tensor) -> Iterator[Block]:
        """The blocks of a tensor that no running use covers."""
        for part in plain_parts(tensor) if self._armed else ():
            if (block := self._by_tensor.get(id(part))) is not None:
                self._turn.refuse_read(block.name, in_child=self._child)
                if not self._running.covers(block):
                    yield block

    def _read(self, block: Block) -> None:
        use = self._reads.get(block)
        if use is None:
            use = self._reads[block] = self._uses.define(block.name, [block], is_read=True)
        most = max(self._largest, READS_AT_ONCE * block.nbytes)
        self._running.release_reads(lambda: self._running.bytes_read() + block.nbytes > most)
        self._running.release_reads(lambda: not self._running.fits(use))
        if not self._running.fits(use):
            self.on_host.give(block, asked_for=False)
            return
        self.on_host.take_back([block])
        try:
            self._running.begin(use)
        except OutOfMemory:
            if self._running.fits(use):
                raise
            self.on_host.give(block, asked_for=False)

    # ---- Discovery -------------------------------------------------------------------------

    def _new_step(self, step: tuple[int, int]) -> None:
        """The way through the modules is another: from here on it is watched."""
        self._steps.add(step)
        if self._watch is None and self._searches < MOST_SEARCHES:
            self._searches += 1
            self._start_watching()

    def _watch_new(self) -> None:
        """A pass begins: one of a new kind is watched; all are new to whoever has kept weights."""
        if self.on_host.has_new_holders():
            self._signatures.clear()
        always = self._always_watch or self.on_host.changed_in_pass
        if always or self._signatures[self.signature] < WATCHED:
            self._signatures[self.signature] += 1
            self._start_watching()

    def _start_watching(self) -> None:
        if self._watch is None:
            told = self._running.covers, self._missed, self._written.add, self.on_host
            self._watch = AccessWatch(self._by_pointer, *told)
            self._watch.__enter__()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.leave()
            self._watch = None
        self._written.clear()

    def _missed(self, block: Block, tensor: torch.Tensor) -> None:
        """An operator touches a block that nobody has read from its module."""
        self._always_watch = True
        self._read(block)
        if block in self.on_host and self._by_tensor.get(id(tensor)) is not block:
            raise OutOfMemory(
                f"a view of {block.name} is used together with more than the budget holds, "
                f"{format_bytes(block.nbytes)} besides what runs",
                remedy="a larger gpu_memory, or read the weight from its module",
                needed_bytes=block.nbytes,
            )
