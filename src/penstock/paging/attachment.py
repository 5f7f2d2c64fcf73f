# SPDX-License-Identifier: Apache-2.0
"""What every attached model has in common, however its blocks come and go.

A budget that blocks and activations share, hooks on the root, refusals, state_dict, and an
ordinary model back. What pages the blocks is for the subclasses to say.

Thread rule: passes of several threads take turns (turns.py). A child process has no attached
models: it is refused at the first call.
"""

from __future__ import annotations

import os
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

import torch
from torch import nn

from penstock.bound import must_cross
from penstock.errors import OutOfMemory, UsageError
from penstock.host import check_host_memory, memory_sizes
from penstock.native import Device
from penstock.units import MIB, format_bytes, parse_size

from .attached import LIVE
from .blocks import Block, Models, Slot, collect_blocks, leave_tables_on_host
from .compiled import keep_out, refuse_capture, refuse_trace
from .contracts import Hooks, Memory
from .conversion import ConversionGuard
from .holding import Holding
from .leaves import tree_leaves
from .manager import extent_of, kind_of, manager_of
from .modes import out_of_inference
from .saved_copies import SavedCopies
from .share import SETTLING, Share
from .stats import BaseStats, explain
from .store import BlockStore, Loader
from .tables import Readers, Table, install, uninstall
from .turns import Turn
from .wrappers import Wrapper, wrap_anew

if TYPE_CHECKING:
    from collections import OrderedDict

    from typing_extensions import Self

FITS_SHARE = 0.9  # of the budget: a model up to this is taken to fit beside its activations


MemoryT = TypeVar("MemoryT", bound=Memory)


class BaseAttachment(ABC, Generic[MemoryT]):
    """A model whose blocks Penstock keeps within a budget.

    Attributes:
        model: The attached module.
        budget: Bytes of device memory it may take.
        weight_bytes: Bytes of its parameters and buffers.
        passes: Forward passes so far.
        store: Where its tensors are.
        manager: Of the budget.
        hooks: What declares uses.
    """

    hooks: Hooks
    store: BlockStore
    # Set by _place(): the unit of the budget, and what is wanted in flight beside the running use.
    _grain: int
    _look_ahead: int
    _views_follow = True  # at detach(): those that others hold of the model's tensors
    _readers: Readers | None = None  # told of reads of its tensors from the beginning
    _parts_widen = False  # the program may give a part a wider dtype between passes

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        torch_device: torch.device,
        *,
        gpu_memory: int | str | None,
        load: Loader | None,
        host_memory: int | str | None,
    ) -> None:
        self.model = model
        self.device = device
        self.torch_device = torch_device
        self.passes = 0
        self._handles: list[Any] = []
        self._passing: tuple[tuple[Hashable, ...], int] | None = None  # what sets the pass apart
        self._kinds: dict[Hashable, int] = {}
        self._kind = 0
        self._host_limit: int | None = None  # the user's word on page-locked bytes
        self._few = 0  # elements of inputs, up to which passes have read few rows of experts
        self._pager: MemoryT | None = None
        self._tables: dict[nn.Module, list[Table]] = {}
        self._wrappers: list[Wrapper] = []
        self._owner = os.getpid()
        self._turn = Turn()
        self._holding = Holding(device)
        self._finalizer = weakref.finalize(self, self._holding.release)
        self._finalizer.atexit = False  # tensors may be in use to the very end
        keep_out(anyway=torch_device.type == "cuda")
        try:
            self._move_in(load, gpu_memory, host_memory)
        except BaseException:
            self._close()
            raise

    def _move_in(
        self, load: Loader | None, gpu_memory: int | str | None, host_memory: int | str | None
    ) -> None:
        """Move the model in; on failure it is as it was, and the caller closes the rest."""
        blocks = collect_blocks(self.model)
        if not blocks:
            raise UsageError("the model has no parameters or buffers", remedy="run it as it is")
        self.weight_bytes = sum(block.nbytes for block in blocks)
        free, total = self.device.memory()
        self.budget = int(free * 0.9) if gpu_memory is None else parse_size(gpu_memory, total=total)
        if self._tables_may_stay() and not self._fits():
            leave_tables_on_host(blocks)
        self._check_budget(free)
        self._check_host(blocks, host_memory)
        self.manager = manager_of(self.device, self.torch_device)
        if self.manager.torch.cuda:
            self.link()  # while there is room for what it copies
        self.manager.prepare(self.budget)
        self._holding.leave = partial(self.manager.leave, None, self.budget)
        self._pager, self.store = self._place(blocks)
        self._holding.pager = self._pager
        self._holding.storages = self.store.storages
        try:
            self.store.move_in(load)
            with out_of_inference(), self.store.in_reach():  # what a wrapper reads when it is made
                self._wrappers = wrap_anew(self.model, (slot for _, slot in self.store.slots()))
            self.hooks = self._make_hooks(blocks)
            self._enter_budget()
        except BaseException:
            self.store.move_out(undo=True)
            self._unwrap()
            raise
        self._slots: dict[nn.Module, list[tuple[Block, Slot]]] = {}
        for block, slot in self.store.slots():
            self._slots.setdefault(slot.module, []).append((block, slot))
        try:
            self._hook()
        except BaseException:
            self.detach()
            raise
        LIVE.add(self)

    @abstractmethod
    def _place(self, blocks: list[Block]) -> tuple[MemoryT, BlockStore]:
        """What pages the blocks, and the store that will move the model into it."""

    @abstractmethod
    def _make_hooks(self, blocks: list[Block]) -> Hooks:
        """The hooks, once the blocks have been placed."""

    @abstractmethod
    def _whole(self, stats: dict[str, Any]) -> int:
        """The bytes of device memory that everything would take."""

    def _fits(self) -> bool:
        """Whether the model is taken to fit its budget as a whole."""
        return self.weight_bytes <= FITS_SHARE * self.budget

    def _tables_may_stay(self) -> bool:
        """Whether embedding tables may stay on the host."""
        return True

    @property
    def pager(self) -> MemoryT:
        """The pager; refuses after detach(), and in a child process."""
        self._check_process()
        if self._pager is None:
            raise UsageError("the model has been detached")
        return self._pager

    # ---- Sizes -----------------------------------------------------------------------------

    def _check_budget(self, free: int) -> None:
        if self.budget > free:
            raise OutOfMemory(
                f"a budget of {format_bytes(self.budget)} exceeds the {format_bytes(free)} that "
                "are free on the device",
                remedy=f'gpu_memory="{free // MIB}MiB" or less',
                budget_bytes=self.budget,
            )

    def _check_host(self, blocks: list[Block], host: int | str | None) -> None:
        on_host = sum(b.nbytes for b in blocks if b.slots[0].tensor.device.type == "cpu")
        sizes = memory_sizes()
        limit = None if host is None else parse_size(host, total=sizes[0] if sizes else None)
        self._host_limit = limit
        check_host_memory(self._least_on_host(blocks), movable=on_host, limit=limit)

    def _least_on_host(self, blocks: list[Block]) -> int:
        """Bytes of page-locked memory that the blocks take at the least."""
        return self.weight_bytes

    def _enter_budget(self) -> None:
        """From here on the blocks share the device with everything else."""
        smallest = max(self.pager.smallest(), self._grain)
        if smallest > self.budget:
            raise OutOfMemory(
                f"a budget of {format_bytes(self.budget)} is below the smallest that works, "
                f"{format_bytes(smallest)} for the largest layer",
                remedy=f'gpu_memory="{-(-smallest // MIB)}MiB"',
                needed_bytes=smallest,
                budget_bytes=self.budget,
            )
        name = type(self.model).__name__
        self._share = Share(self.manager, self.pager, self.budget, name)
        self.manager.torch.synchronize()
        self.manager.torch.empty_cache()  # where the model lay
        self.pager.resize(min(self.budget, self._first()))
        self.manager.enter(self._share, smallest)
        self._holding.leave = partial(self.manager.leave, self._share, self.budget)

    def _first(self) -> int:
        """Bytes for the blocks before anybody knows what tensors need."""
        return self.pager.smallest() + self._look_ahead

    def resize(self, gpu_memory: int | str) -> None:
        """Change the budget; pages come and go accordingly.

        Args:
            gpu_memory: Bytes, "12GiB" or "80%" of the device.

        Raises:
            OutOfMemory: If the largest layer does not fit; the budget is as before.
        """
        smallest = max(self.pager.smallest(), self._grain)
        free, total = self.device.memory()
        budget = parse_size(gpu_memory, total=total)
        if smallest > budget:
            raise OutOfMemory(
                f"a gpu_memory of {format_bytes(budget)} is below the smallest that works, "
                f"{format_bytes(smallest)} for the largest layer",
                needed_bytes=smallest,
                budget_bytes=budget,
            )
        if budget - self.budget > free:
            raise OutOfMemory(
                f"a gpu_memory of {format_bytes(budget)} is {format_bytes(budget - self.budget)} "
                f"more than now, and {format_bytes(free)} are free on the device",
                remedy=f'gpu_memory="{(self.budget + free) // MIB}MiB" or less',
                budget_bytes=budget,
            )
        with self._turn.held(id(sys._getframe())):
            self.manager.resize(self._share, budget)
            self.budget = budget
            self._holding.leave = partial(self.manager.leave, self._share, budget)
            self._share.shrink(smallest)

    # ---- A pass ----------------------------------------------------------------------------

    @property
    def _stream(self) -> Callable[[], int]:
        """Gives the raw handle of the stream that kernels go to now."""
        if self.torch_device.type != "cuda":
            return lambda: 0
        return partial(torch._C._cuda_getCurrentRawStream, self.torch_device.index)

    def _hook(self) -> None:
        model = self.model
        self._tables = install(model, self._readers)
        in_forward, room = self.hooks.in_forward, lambda: self.budget if self._parts_widen else 0
        self._conversion = ConversionGuard(self._tables, self._slots, in_forward, room)
        self.hooks.arm()
        self._handles.append(
            # Before all others, which may read weights.
            model.register_forward_pre_hook(self._begins, prepend=True, with_kwargs=True)
        )
        self._handles.append(model.register_forward_hook(self._ends, always_call=True))
        self._copies = SavedCopies(self.store)
        for module in self._slots:
            # The registry sets an attribute on the hook, which a bound method refuses.
            before = module.register_state_dict_pre_hook(lambda *_: self._before_state_dict())
            after = module.register_state_dict_post_hook(lambda *state: self._state_dict(*state))
            # Others' see what ours gives.
            cast("OrderedDict[int, Any]", module._state_dict_hooks).move_to_end(after.id, False)
            load = module.register_load_state_dict_pre_hook(self._before_load)
            self._handles += [before, after, load]

    def _begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self._turn.take(id(sys._getframe(1)))
        self._pass_begins("", model, args, kwargs)
        self.hooks.pass_begins()

    def part_begins(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A part of the model is called by itself."""
        self._pass_begins(name, module, args, kwargs)

    def _pass_begins(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        refuse_trace()
        if self.torch_device.type == "cuda":
            refuse_capture()
        if torch.is_grad_enabled():
            self._refuse_grad(tensors)
        signature = (module.training, *kwargs, *map(kind_of, leaves))
        size = elements(tensors)
        kind = name, signature, size <= self._few
        self._kind = self._kinds.setdefault(kind, len(self._kinds))
        # Which kind it is first, so that the room it gets is planned for it.
        self.pager.iteration(self._kind, size)
        self._size(name, tensors)
        self._inputs((name, *signature))
        self._follow_tensors()

    def _follow_tensors(self) -> None:
        """What operators make from here on counts."""
        self.manager.torch.pass_begins(self.manager.who_has_what)

    def _size(self, name: str, tensors: list[torch.Tensor]) -> None:
        """Give the blocks the room that a pass with these inputs leaves."""
        key = (name, torch.is_grad_enabled(), *map(extent_of, tensors))
        self._passing = key, elements(tensors)
        whole = self._whole(self.pager.stats())
        self._share.begins(*self._passing, first=self._first, whole=whole)

    def _inputs(self, signature: Hashable) -> None:
        """A pass begins; equal signatures mean the same mode, and inputs of the same kinds."""

    def _ends(self, model: nn.Module, args: Any, output: Any) -> None:
        try:
            if self._passing is not None:  # else it was refused before it began
                self.hooks.pass_ends()
                self._pass_ends()
        finally:
            self.manager.torch.pass_ends()
            self._turn.release()

    def part_ends(self) -> None:
        """The part has returned, or raised."""
        try:
            if self._passing is not None:
                self._pass_ends()
        finally:
            self.manager.torch.pass_ends()

    def _pass_ends(self) -> None:
        assert self._passing is not None
        passing, self._passing = self._passing, None
        self.passes += 1
        self.manager.explain(sys.exc_info()[1])
        self._share.ends(*passing)
        if self._read_few():
            self._few = max(self._few, passing[1])
        if self.passes <= SETTLING:  # planned at once
            self.pager.iteration(self._kind, passing[1])

    def _read_few(self) -> bool:
        """Whether the pass read few rows of what it could have read."""
        return False

    def out_of_memory(self, error: OutOfMemory) -> OutOfMemory:
        """The error of a use that found no room, with who has it."""
        return self.manager.explained(error)

    def _refuse_grad(self, tensors: list[torch.Tensor]) -> None:
        own = (slot.tensor for slots in self._slots.values() for _, slot in slots)
        if any(tensor.requires_grad for tensor in (*own, *tensors)):
            raise UsageError(
                "an attached model does inference only: backward would read blocks that have "
                "left the device",
                remedy="run it under torch.no_grad(), or train it, or what goes into it, with "
                "penstock.attach_training()",
            )

    # ---- The rest of an ordinary module's life ---------------------------------------------

    def _before_state_dict(self) -> None:
        """A module's state_dict() begins."""

    def _state_dict(self, module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        """state_dict() of a module: tensors on the host, with the current content."""
        own = self._slots[module]
        self._save({block: None for block, _ in own})
        hanging = {}
        for block, slot in own:
            name = prefix + slot.key
            if slot.holder is not None:
                hanging[slot.tensor.data_ptr(), slot.tensor.shape] = block, slot
            elif slot.wrapper is None and name in state and self.store.is_in_place(block, slot):
                self._copies.put(state, name, block, slot)
        if hanging:  # under names that only its library knows
            for name, tensor in state.items():
                if name.startswith(prefix) and isinstance(tensor, torch.Tensor):
                    found = hanging.get((tensor.data_ptr(), tensor.shape))
                    if found is not None:
                        state[name] = self.store.copy_of(*found)
        views = {id(slot.tensor): (block, slot) for block, slot in own}
        for wrapper in self._wrappers:
            if wrapper.module is module and wrapper.is_there and prefix + wrapper.key in state:
                state[prefix + wrapper.key] = wrapper.with_leaves(
                    lambda leaf: self.store.copy_of(*views[id(leaf)])
                )

    def _save(self, blocks: Iterable[Block]) -> None:
        """Make the host copies current."""
        self.store.flush(blocks)

    def _before_load(self, *_: Any) -> None:
        raise UsageError(
            "an attached model cannot load a state_dict", remedy="detach(), load, attach() again"
        )

    # ---- In a child process ----------------------------------------------------------------

    def _check_process(self, *_: Any) -> None:
        if os.getpid() != self._owner:
            self._refuse_child()

    def _refuse_child(self, *_: Any) -> NoReturn:
        raise UsageError(
            f"the model is attached in process {self._owner}, and this is its child {os.getpid()}",
            remedy="attach() in the child alone, or start it with multiprocessing's 'spawn'",
        )

    def _in_child(self) -> None:
        """Memory and threads behind the model are the parent's: refuse every call."""
        self._finalizer.detach()
        self._holding.abandon()
        for module in self.model.modules():
            module.register_forward_pre_hook(self._refuse_child, prepend=True)

    # ---- The rest --------------------------------------------------------------------------

    @abstractmethod
    def stats(self) -> BaseStats:
        """Counters and sizes of the pager, and what they amount to."""

    def must_cross(self, nbytes: int, room: int) -> int:
        """Bytes that cross the link in a pass like the last, whoever pages, with so much room."""
        return must_cross(nbytes, room)

    def explain(self) -> str:
        """One line: why the last passes were as fast or slow as they were."""
        return explain(self.stats())

    def link(self) -> tuple[float, float]:
        """Page-locked copy speed in and out, decimal GB/s, measured once."""
        return self.manager.link(self.device)

    def detach(self, *, keep: bool = True) -> Any:
        """Give an ordinary model back, on the CPU, with the current content; free all the rest.

        Args:
            keep: Whether the content is wanted. Without it the model's tensors are left empty,
                and no second copy of them is ever made.
        """
        self._check_process()
        if self._pager is not None:
            self._turn.take(id(sys._getframe()))
            for handle in self._handles:
                handle.remove()
            self.hooks.remove()
            self.manager.torch.pass_ends()  # of one that was interrupted
            self.manager.torch.synchronize()  # of what stood, no use has been declared
            if keep:
                self._save(self.store.blocks)
                self.store.move_out(views=self._views_follow)
            else:
                self.store.drop()
            self._conversion.remove()
            uninstall(self._tables)
            self._unwrap()
            self._close()
            self._turn.release()
        return self.model.source if isinstance(self.model, Models) else self.model

    def _unwrap(self) -> None:
        for wrapper in self._wrappers:
            wrapper.put_back()

    def _close(self) -> None:
        self._pager = None
        self._finalizer()
        LIVE.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def elements(tensors: Iterable[torch.Tensor]) -> int:
    """How many they have."""
    return sum(tensor.numel() for tensor in tensors)
