# SPDX-License-Identifier: Apache-2.0
"""Hooks that tell the pager what forward, backward and update are about to touch.

Forward: a use around each module that owns paged blocks, as in inference.

Backward: the use of a module begins when autograd reaches the node that made its output, or when
its forward is computed again (recomputation), whichever comes first. It ends when the module's
parameters have their gradients and have been updated, or when autograd reaches the node that made
its input: a device's nodes run by falling sequence number, so all of the module's are over then.
Backward hooks of modules would wrap outputs in a node, which forbids changing them in place.

An iteration is watched, operator by operator, in backward too, where it is the first, or somebody
has come to hold weights; all are where a module reads what it does not own, which may depend on the
input. What its forward was seen to touch beyond its own becomes part of its uses; what backward or
code outside was, stays from forward to the step. Where new code reads a weight from its module, the
rest of the pass is watched, and the next one; in backward operators bring in what they touch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Any

import torch
from torch import nn

from penstock.errors import UsageError
from penstock.native import Pager

from ..blocks import Block, Home
from ..leaves import tree_leaves
from ..modes import leave_over
from ..watch import AccessWatch
from .between import Between, Part
from .holders import Holders
from .nodes import NO_TASK, NodeHooks, graph_task, in_backward, makers, sources
from .reads import NewReads
from .recomputed import Recomputed
from .run import Run
from .units import NO_USE, Unit, unit_of


class TrainingUses:
    """Declares the uses of one model in training.

    Attributes:
        always_watch: As given; may change between passes.
        updated: Parameters that the optimizer has updated in this step's backward.
        recomputed: Units whose forward backward has computed again, and no more yet.
        reads: To be told of reads by the modules' tables.

    Args:
        model: The root.
        units: Its units.
        blocks: Its blocks, placed.
        pager: Where uses are declared.
        stream: Gives the raw handle of the stream that kernels go to now.
        grow: Called where nested uses need more, with (address, bytes) pieces; or it raises.
        part_begins: Called with the name and the inputs of a module called outside a pass.
        backward_ends: Called when a backward pass is over.
        before_large: Called before forward's last unit, and as backward begins.
        always_watch: Check every operator in every iteration, not only in the first.
    """

    def __init__(
        self,
        model: nn.Module,
        units: list[Unit],
        blocks: list[Block],
        pager: Pager,
        stream: Callable[[], int],
        *,
        grow: Callable[[Exception, list[tuple[int, int]]], None],
        part_begins: Callable[[str, Any, Any], None],
        backward_ends: Callable[[], None],
        before_large: Callable[[], None],
        always_watch: bool,
    ) -> None:
        self._model = model
        self._units = units
        self._pager = pager
        self._stream = stream
        self._grow, self._part_begins = grow, part_begins
        self._backward_ends, self._before_large = backward_ends, before_large
        self._latest: Unit | None = None
        self._last = units[-1] if units else None  # of the last forward, or of the model
        self.always_watch = always_watch
        self._by_module = {unit.module: unit for unit in units}
        self._names: dict[int, str] = {}
        self._covered: dict[int, frozenset[int]] = {}  # addresses of blocks, by use
        self._pieces: dict[int, list[tuple[int, int]]] = {}  # by use
        self._begun: list[int] = []
        for unit in units:
            if unit.blocks:
                self._define(unit)
        self._by_pointer = {block.address: block for block in blocks if block.home is Home.PAGED}
        by_tensor = {id(s.tensor): b for b in self._by_pointer.values() for s in b.slots}
        self.reads = NewReads(by_tensor, self._is_begun, self._new_read)
        weights = [s.tensor for b in self._by_pointer.values() for s in b.slots]
        self._holders = Holders(weights)
        self._watch_again, self._first = False, True
        self._of_nodes = NodeHooks()
        self.pass_made = self._of_nodes.make(self.enter_backward)
        self._handles: list[Any] = []
        self._watch_handles: list[Any] = []
        self._running: list[Run] = []  # uses of forward, innermost last
        self._written: set[Block] = set()  # what this pass was seen to write
        self.updated: Container[torch.Tensor] = ()
        self._updating: list[int] = []
        self._touching: dict[tuple[int, ...], int] = {}  # by the addresses of blocks
        self.between = Between({**self._by_pointer}, self._is_there, self.touching)
        self.between.holders = Holders(weights)  # asked for at other moments
        self._open: list[Unit] = []  # units whose backward is under way
        self.recomputed = Recomputed(self.close_backward)
        self._stack: list[tuple[nn.Module, list[Any]]] = []  # in forward; what made their input
        self._in_forward = self.was_backward = self._watching_now = False
        self._task, self._thread = NO_TASK, 0  # the outermost backward pass, and where
        self._watch: AccessWatch | None = None
        self._reads_vary = False  # a module reads what it does not own; which may be decided anew
        self._throughout: list[Block] = []  # what stays from forward to the step
        self._throughout_use = NO_USE
        self._throughout_runs: list[int] = []

    # ---- Uses ------------------------------------------------------------------------------

    def _define(self, unit: Unit) -> None:
        pieces = [(block.address, block.nbytes, block.written) for block in unit.blocks]
        unit.unwritten = [s.tensor for b in unit.blocks if not b.written for s in b.slots]
        unit.forward = self.define(f"{unit.name} (forward)", pieces)
        unit.backward = self.define(f"{unit.name} (backward)", pieces)

    def define(
        self, name: str, pieces: list[tuple[int, int, bool]], within: Iterable[int] = ()
    ) -> int:
        """A use of (address, bytes, written) pieces; `within`: addresses of blocks of some."""
        use = self._pager.define_use(pieces)
        self._pieces[use] = [(address, nbytes) for address, nbytes, _ in pieces]
        self._covered[use] = frozenset([*(address for address, _, _ in pieces), *within])
        self._names[use] = name
        return use

    def begin(self, use: int) -> None:
        """A use begins, making room if it needs more than ever before."""
        while True:
            self._begun.append(use)  # before, and until it has ended: an interrupt may be next
            try:
                return self._pager.begin(use, self._stream())
            except MemoryError as error:
                together = [piece for each in {*self._begun} for piece in self._pieces[each]]
                self._begun.remove(use)
                self._grow(error, together)

    def end(self, use: int) -> None:
        """A use ends."""
        self._pager.end(use, self._stream())
        if use in self._begun:
            self._begun.remove(use)

    def open_backward(self, unit: Unit) -> None:
        """The unit's backward begins, unless it has, or detach() left nothing to page."""
        self.recomputed.discard(unit)
        if not unit.open and unit.backward != NO_USE and not self._pager.closed:
            self.begin(unit.backward)
            unit.open = Run(unit, unit.backward, own=True)
            self._open.append(unit)

    def close_backward(self, unit: Unit) -> None:
        """The unit's backward is over."""
        if unit.open:
            self._open.remove(unit)
            run, unit.open = unit.open, None
            self._end(run)

    @contextmanager
    def touching(self, parts: Sequence[Part]) -> Iterator[None]:
        """Around work outside the modules that reads and writes these."""
        key = tuple(part.address for part in parts)
        if key not in self._touching:
            self._touching[key] = self._define_parts(parts, f"{parts[0].name} (outside the model)")
        with self.during(self._touching[key]):
            yield

    @contextmanager
    def during(self, use: int) -> Iterator[None]:
        """Around work that reads and writes what the use touches."""
        self.begin(use)
        self._updating.append(use)
        try:
            yield
        finally:
            self._updating.remove(use)
            self.end(use)

    def name_of(self, use: int) -> str:
        """The module path behind a use number, for reports."""
        return self._names.get(use, "")

    @property
    def stays(self) -> list[str]:
        """Names of blocks that stay from forward to the step: what backward was seen to miss."""
        return [block.name for block in self._throughout]

    # ---- Life ------------------------------------------------------------------------------

    @property
    def watching(self) -> bool:
        """Whether operators are being checked."""
        return bool(self._watch_handles) or self._watching_now

    def arm(self) -> None:
        """Put the hooks on every module that owns paged blocks, and watch the first pass."""
        for unit in self._units:
            if unit.blocks:
                # Before the program's own hooks, which may make the module's weights of others.
                self._arm(unit, prepend=True)
        self._start_watch()

    def _arm(self, unit: Unit, *, prepend: bool = False) -> None:
        module, begins = unit.module, self._before_forward(unit)
        self._handles += [
            module.register_forward_pre_hook(begins, prepend=prepend, with_kwargs=True),
            module.register_forward_hook(self._after_forward(unit), always_call=True),
        ]

    def _start_watch(self) -> None:
        """From the next forward on, check what every operator touches."""
        self._watch_again = False
        for module in () if self._watch_handles else self._model.modules():
            self._watch_handles += [
                module.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True),
                module.register_forward_hook(self._leave, always_call=True),
            ]

    def remove(self) -> None:
        """Take every hook off, also in the middle of an iteration."""
        self.abandon()
        for handle in self._handles:
            handle.remove()
        self.between.end()
        self.leave_watch()
        self._end_watch()

    def drop_graphs(self) -> None:
        """Nothing of ours lies in any graph."""
        if self._pager.closed:
            self._of_nodes.drop()

    def pass_begins(self) -> None:
        """The root's forward starts, outside backward."""
        self.between.stop()
        self._end_uses()
        self.was_backward, self._task = False, NO_TASK
        self._in_forward = self.reads.in_pass = True
        if self._holders.grown() or self._watch_again:
            self._start_watch()
        if self._watch_handles and not self._watching_now:
            self._enter_watch()
        if self._throughout and not self._throughout_runs:
            if self._throughout_use == NO_USE:
                self._throughout_use = self._define_parts(self._throughout)
            self._stay(self._throughout_use)

    def pass_ends(self) -> None:
        """The root's forward is over, with or without an error."""
        self._in_forward = self.reads.in_pass = False
        self._last, self._latest = self._latest or self._last, None
        while self._running:
            self._end(self._running.pop())
        self._written.clear()
        self._stack.clear()

    def in_forward(self) -> bool:
        """Never: what is replaced would not be the optimizer's any more."""
        return False

    def evaluation_ends(self) -> None:
        """A forward pass that no backward will follow is over."""
        self.abandon()
        self.leave_watch()
        self.between.start()

    def iteration_ends(self) -> None:
        """The optimizer has stepped."""
        self.abandon()
        self.was_backward = False
        for unit in self._units:
            unit.calls = 0
        self.leave_watch()
        if self._watch is not None and not (self.always_watch or self._reads_vary):
            self._end_watch()
            self._first = False
        self.between.start(pending=False)

    def abandon(self) -> None:
        """End every use that still runs, also after an error, for which no hook ran."""
        self._end_uses()
        while self._throughout_runs:
            self.end(self._throughout_runs.pop())

    def _end_uses(self) -> None:
        self.pass_ends()
        while self._open:
            self.close_backward(self._open[-1])
        for use in set(self._begun) - {*self._throughout_runs, *self._updating}:
            with suppress(UsageError):  # an interrupt came as it began or ended
                self.end(use)
            self._begun = [each for each in self._begun if each != use]
            for unit in self._units:
                unit.open = None

    def leave_watch(self) -> None:
        """Leave the mode that watches operators, until the next pass."""
        if self._watch is not None and self._watching_now:
            self._watch.over = not self._watch.take_out()  # another thread's, which leaves it
            self._watching_now = False
            leave_over()  # what is over by now

    def _end_watch(self) -> None:
        for handle in self._watch_handles:
            handle.remove()
        self._watch_handles.clear()
        if self._watch is not None:
            self._watch.over = True  # it may lie under another attachment's
        self._watch = None

    # ---- Forward ---------------------------------------------------------------------------

    def _before_forward(self, unit: Unit) -> Callable[..., None]:
        running, close = self._running, self._closer(unit)

        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if in_backward():  # recomputation: backward follows, so the blocks stay for it
                self.enter_backward()
                self.open_backward(unit)
            else:
                if not self._in_forward:
                    self._part_begins(unit.name, args, kwargs)
                if unit is self._last and torch.is_grad_enabled():
                    self._before_large()
                self._latest = unit
                unit.calls += 1
                self.begin(unit.forward)
                running.append(Run(unit, unit.forward, own=True))
            for node in sources(args, kwargs):
                node.register_prehook(close)

        return hook

    def _closer(self, unit: Unit) -> Callable[[Any], None]:
        """For the nodes that made a unit's input: where autograd reaches them, it is over.

        One for all of the unit's forward passes: what lives from each to its backward counts for
        Python's collector.
        """
        return self._of_nodes.make(lambda: self.close_backward(unit))

    def _after_forward(self, unit: Unit) -> Callable[..., None]:
        def reached() -> None:
            self.enter_backward()
            self.open_backward(unit)

        open_ = self._of_nodes.make(reached)

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            # Else autocast keeps copies of all weights until its context ends: 2.9 GiB (GPT-2 XL).
            torch.clear_autocast_cache()
            if in_backward():
                self.recomputed.add(unit)
            else:
                self._end_forward(unit)
            if torch.is_grad_enabled():
                for value in [output] if isinstance(output, torch.Tensor) else tree_leaves(output):
                    for node in makers(value):
                        node.register_prehook(open_)

        return hook

    def _end_forward(self, unit: Unit) -> None:
        """End the unit's use, and with it whatever was found missing inside the module."""
        begun = [n for n, run in enumerate(self._running) if run.own and run.unit is unit]
        while self._running and (begun or self._running[-1].unit is unit):
            self._end(self._running.pop())
            if begun and len(self._running) == begun[-1]:
                return

    def _end(self, run: Run) -> None:
        """A module's use is over; what it wrote goes out with its pages."""
        if written := run.wrote(self._written, self.updated):
            for unit in self._units:
                if not set(written).isdisjoint(unit.blocks):
                    self._define(unit)
            with self.touching(written):
                pass
        self.end(run.use)

    # ---- Backward --------------------------------------------------------------------------

    def enter_backward(self) -> None:
        """A hook runs in backward: if it is the first, see to it that the end is noticed."""
        task, thread = graph_task(), get_ident()
        if self._task == NO_TASK or (task != self._task and thread != self._thread):
            self._before_large()  # refuses another thread's
        if self._task != NO_TASK:
            return
        self._task, self._thread = task, thread
        engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
        engine.queue_callback(self._leave_backward)

    def nested_backward(self) -> bool:
        """Whether this is a backward pass within another (reentrant recomputation)."""
        return graph_task() != self._task

    def _leave_backward(self) -> None:
        self._task = NO_TASK
        self.was_backward = True
        self._backward_ends()
        while self._open:
            self.close_backward(self._open[-1])

    # ---- Discovery -------------------------------------------------------------------------

    def _new_read(self) -> None:
        """Code reads a weight that it has not read before, and no use of it is running."""
        if in_backward() and not self._watching_now:
            self.between.wake()
        elif not self._watching_now:
            self._watch_again = True
            self._enter_watch()

    def _enter_watch(self) -> None:
        if self._watch is None or self._watch.over:
            self._watch = AccessWatch(self._by_pointer, self._covers, self._missed, self._writes)
        self._watch.__enter__()
        self._watching_now = self.between.needed = True

    def _enter(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        self._stack.append((module, sources(args, kwargs or {})))  # None: just taken off

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        del self._stack[-1:]

    def _covers(self, block: Part) -> bool:
        if block.address in self.between.whole and not self._in_forward:
            self.between.late(block.address)
        return self._is_begun(block)

    def _is_begun(self, block: Part) -> bool:
        return any(block.address in self._covered[use] for use in self._begun)

    def _is_there(self, part: Part) -> bool:
        """Whether outside work finds it there, or the watch, up to backward's end, has it stay."""
        learns = self._watching_now and (in_backward() or not self.was_backward)
        lasts = self._first or self._reads_vary or torch.is_grad_enabled()
        return (learns and lasts and part.address in self._by_pointer) or self._covers(part)

    def _define_parts(self, parts: Sequence[Part], name: str = "") -> int:
        return self.define(name, [(part.address, part.nbytes, True) for part in parts])

    def _stay(self, use: int) -> None:
        self.begin(use)
        self._throughout_runs.append(use)

    def _writes(self, block: Block) -> None:
        changes = not any(block.address in self._covered[use] for use in self._updating)
        if changes and (self._in_forward or in_backward()):
            self._written.add(block)

    def _missed(self, block: Block, tensor: torch.Tensor) -> None:
        if not self._in_forward or in_backward():
            if not self._is_there(block):
                return  # a view alone: what reads it brings it in
            self.between.touched([block.address])
            self._throughout.append(block)
            self._throughout_use = NO_USE
            self._stay(self._define_parts([block]))
            return
        if not self._watch_handles:  # begun in the middle: whose it is the next one shows
            return self._stay(self._define_parts([block]))
        # The module reads it: it belongs to its uses, from this forward on.
        module, nodes = self._stack[-1] if self._stack else (self._model, [])
        unit = self._by_module.get(module)
        if unit is None:
            unit = self._by_module[module] = unit_of(self._model, module)
            self._units.append(unit)
        # torch's own (attention reads its projection's weight) read the same ones every time.
        self._reads_vary |= not type(module).__module__.startswith("torch.nn.")
        fresh = not unit.blocks
        unit.blocks.append(block)
        use = self._define_parts([block])
        self.begin(use)
        self._running.append(Run(unit, use, own=False))
        self._define(unit)
        if fresh:
            # This very forward has begun without the unit's own hooks.
            self._arm(unit)
            for node in nodes:
                node.register_prehook(self._closer(unit))
