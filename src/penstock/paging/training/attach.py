# SPDX-License-Identifier: Apache-2.0
"""penstock.attach_training: train a model whose weights and optimizer state exceed the budget.

Weights and optimizer state move into blocks, as with attach(); in the first steps gradients do.
Once the loop is known to use none of them, a parameter is updated in backward, as soon as its
gradient is whole: its weights are there, its state comes in for it, and the gradient is freed at
once, so gradients never exist all together. The results are those of the same updates with
everything resident, bit for bit.

Thread rule: one thread at a time runs the model; autograd's own threads are fine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from penstock.errors import UsageError
from penstock.host import check_host_memory
from penstock.native import Device, Pager

from ..attach import PagerAttachment, chunk_size_for, typical_block
from ..attached import refuse_attached
from ..blocks import Block, Home, keep_if_little
from ..compiled import refuse_trace
from ..device import settle
from ..leaves import tree_leaves
from ..stats import figures
from ..store import BlockStore, Loader
from .activations import AUTO, KEEP, Activations
from .gradients import HeldGradients
from .hooks import TrainingUses
from .loop import Loop
from .nodes import in_backward
from .optimizer_step import OtherOptimizers, PagedStep
from .other_data import OtherData
from .room import used_together
from .state import StateStore
from .state_dict import StateDicts
from .stats import TrainingStats, summarize_training
from .stepping import Size, Stepper
from .threads import Threads
from .units import Unit, assign_parameters, check_trained, make_units
from .update import Update

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Of the budget, for what is trained to stay: uses of adapters take the host longer than the link.
LITTLE_SHARE = 1 / 16
STATE = 2  # AdamW's state, in weights: what sizes are guessed from before the state is there
LAYERS_AHEAD = 1.25  # of state on its way beyond the running use
MOST_AHEAD = 1 / 6  # of the budget


def attach_training(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    gpu_memory: int | str | None = None,
    device: str | torch.device | None = None,
    load: Loader | None = None,
    chunk_size: int | str | None = None,
    look_ahead: int | str | None = None,
    safety: str | None = None,
    host_memory: int | str | None = None,
    emulated: dict[str, int] | None = None,
    clip_norm: float | None = None,
    step_in_backward: bool | None = None,
    activations: str = AUTO,
) -> TrainingAttachment:
    """Page what a model's training takes: weights, gradients, optimizer state and activations.

    The training loop stays as it is, whatever it does with gradients. What is left out is decided
    by PENSTOCK_* variables, then by penstock.toml, then by the default.

    Args:
        model: Any module; on the CPU, on the device, or on "meta" (then `load` fills it).
        optimizer: A torch optimizer over its parameters whose update of one needs that one alone
            (AdamW, SGD, Adafactor, ...); its state, if it has any, moves too.
        gpu_memory: The budget of device memory for everything, activations included: bytes,
            "9GiB" or "80%" of the device; default 90 % of what is free.
        device: "auto" (CUDA where there is one), "cuda", "cuda:N" or "emulated".
        load: Called as load(name, destination) once for each tensor of a model on "meta", with a
            CPU tensor of its shape and dtype to fill.
        chunk_size: The unit of paging; default from the model's size, 2 to 32 MiB.
        look_ahead: Bytes wanted in flight beyond the running module's own; default from the
            model's size, about the state of one layer.
        safety: "normal": what was not seen to be used is right, or fails. "strict": every operator
            is checked as well. "fast": the GPU may find other data there, and less is waited for.
        host_memory: Most host memory to use; default what is available.
        emulated: Options of the emulated GPU: capacity, granularity, seed, max_delay_us, ...
        clip_norm: Scale all gradients down so that their common 2-norm is at most this, as
            torch.nn.utils.clip_grad_norm_ does. Gradients are then held, in blocks, until
            optimizer.step().
        step_in_backward: Whether parameters are updated in backward, so that gradients never exist
            together. By default once eight steps have shown that the loop goes straight from
            backward to optimizer.step(); True: from the first step on, without looking; False:
            never.
        activations: "auto": those that forward saves for backward leave the device, and come back,
            where a step has more of them than there is room. "keep": they stay, and a step that
            has too many is out of memory.

    Returns:
        The attachment; its detach() gives an ordinary model and optimizer back.

    Raises:
        OutOfMemory: If the budget or the host cannot hold what must be held.
        UsageError: If an argument makes no sense, the optimizer needs all gradients at once, or
            the model is attached already.
        EnvironmentProblem: If the device is not there.
    """
    refuse_attached(model)
    if activations not in (AUTO, KEEP):
        raise UsageError(f"activations={activations!r} is unknown", remedy=f'"{AUTO}" or "{KEEP}"')
    update = Update(optimizer)
    if clip_norm is not None and not clip_norm > 0:
        raise UsageError(f"a clip_norm of {clip_norm} leaves nothing", remedy="a number above 0")
    opened, torch_device, settings = settle(
        emulated,
        gpu_memory=gpu_memory,
        device=device,
        chunk_size=chunk_size,
        look_ahead=look_ahead,
        safety=safety,
        host_memory=host_memory,
    )
    return TrainingAttachment(
        model,
        update,
        opened,
        torch_device,
        load=load,
        clip_norm=clip_norm,
        step_in_backward=step_in_backward,
        activations=activations,
        **settings,
    )


class TrainingAttachment(PagerAttachment):
    """A model in training whose blocks Penstock pages. Made by attach_training().

    Attributes:
        optimizer: The attached optimizer.
        steps: Optimizer steps so far.
        activations: What leaves of them, and when.
    """

    hooks: TrainingUses
    _views_follow = False  # autograd may have saved some

    def __init__(
        self,
        model: nn.Module,
        update: Update,
        device: Device,
        torch_device: torch.device,
        *,
        clip_norm: float | None,
        step_in_backward: bool | None,
        activations: str,
        **more: Any,
    ) -> None:
        self._update = update
        self.optimizer = update.optimizer
        self.steps = 0
        self._clip_norm = clip_norm
        self._choice = activations
        self._loop = Loop(False if clip_norm is not None else step_in_backward)
        self._followed: set[int] = set()
        self._running = False  # a forward
        self._sized = False  # the room, for the backward that follows
        self._units: list[Unit] = []
        super().__init__(model, device, torch_device, **more)

    # ---- Making ----------------------------------------------------------------------------

    def _chunk_size(self, blocks: list[Block]) -> int:
        paged = self._trained_bytes() * STATE + self.weight_bytes
        return chunk_size_for(paged, STATE * typical_block(blocks, lambda block: block.nbytes))

    def _default_look_ahead(self) -> int:
        """The state of a layer: while one layer computes, that of the next goes in and out."""
        lists = [len(each) for each in self.model.modules() if isinstance(each, nn.ModuleList)]
        layer = STATE * self._trained_bytes() / max([1, *lists])
        ahead = min(LAYERS_AHEAD * layer, MOST_AHEAD * self.budget)
        return max(super()._default_look_ahead(), int(ahead))

    def _trained_bytes(self) -> int:
        every = {id(p): p for p in self._update.parameters()}
        return sum(every[number].nbytes for number in set(self._update.trained()))

    def _tables_may_stay(self) -> bool:
        return False  # the update writes all of a table, and the host's memory is slow to write

    def _place(self, blocks: list[Block]) -> tuple[Pager, BlockStore]:
        self._before = [(slot, slot.tensor) for block in blocks for slot in block.slots]
        # Trained blocks apart: a page that a small adapter shares with frozen weights would be
        # written back whole, every step.
        trained = set(self._update.trained())
        own = [b for b in blocks if any(id(slot.tensor) in trained for slot in b.slots)]
        blocks.sort(key=set(own).__contains__)
        keep_if_little(own, int(LITTLE_SHARE * self.budget / (2 + STATE)))
        return super()._place(blocks)

    def _make_hooks(self, blocks: list[Block]) -> TrainingUses:
        made = {
            id(before): slot.tensor
            for slot, before in self._before
            if slot.tensor is not before and isinstance(slot.tensor, nn.Parameter)
        }
        if made:  # parameters on "meta" have been made anew
            self._update.replace(made)
        del self._before
        self._trained = self._update.trained()
        self._units = make_units(self.model, blocks)
        assign_parameters(self._units, blocks, set(self._trained))
        check_trained(self.model, self._units)
        uses = TrainingUses(
            self.model,
            self._units,
            blocks,
            self.pager,
            self._stream,
            grow=self._grow,
            part_begins=self._part_begins,
            backward_ends=self._backward_ends,
            before_large=self._before_large,
            always_watch=self._safety == "strict",
        )
        self._readers = uses.reads
        where = (uses, self.pager, self.torch_device, self._take_host)
        self._state = StateStore(self._update, self._units, *where)
        self._held = HeldGradients(
            *where, self._loop.gradient_touched, norms=self._clip_norm is not None
        )
        self._stepper = Stepper(
            self._units,
            self._update,
            uses,
            self._state,
            self._held,
            self._loop,
            budget=self.budget,
            grain=self._grain,
            clip_norm=self._clip_norm,
        )
        self._other_data = OtherData(self.store, uses.touching, self._stepper.has_updated)
        return uses

    def _take_host(self, nbytes: int) -> None:
        check_host_memory(nbytes, limit=self._host_limit)
        if self._host_limit is not None:
            self._host_limit -= nbytes  # given back with the attachment

    def _check_host(self, blocks: list[Block], host: int | str | None) -> None:
        super()._check_host(blocks, host)
        if self._host_limit is not None:
            self._host_limit = max(0, self._host_limit - self.weight_bytes)

    def _hook(self) -> None:
        self.activations = Activations(
            self.model,
            self._choice,
            self.torch_device,
            self.manager,
            self._share,
            least=self._first,
            weights=self.weight_bytes,
            check_host=self._take_host,
        )
        super()._hook()
        self._threads = Threads(self._turn)
        self._follow_parameters()
        optimizer = self.optimizer
        self._handles += [
            *StateDicts(self._update, self._state, self._stepper.used, self._take_state).register(),
            PagedStep(optimizer, self._step, self._after_step),
            OtherOptimizers(optimizer, self._touching),
        ]
        if any(parameter in optimizer.state for parameter in self._update.parameters()):
            self._take_state()
        self.hooks.between.start()  # the program may use weights before its first forward

    def _follow_parameters(self) -> None:
        """A hook on each parameter that is updated and has none."""
        whole = self._stepper.gradient_is_whole
        for unit in self._units:
            for parameter in unit.parameters:
                if id(parameter) not in self._followed and parameter.requires_grad:
                    self._followed.add(id(parameter))
                    self._handles.append(parameter.register_post_accumulate_grad_hook(whole))

    def _look_for_changes(self, *, trains: bool) -> None:
        """What the user has unfrozen, frozen or given to the optimizer since."""
        self._other_data.look()
        trained = self._update.trained()
        if trained == self._trained or not trains:
            return  # what is frozen in a pass of a reference alone is trained all the same
        self._trained = trained
        self._update.regroup()
        assign_parameters(self._units, self.store.blocks, set(trained))
        self._stepper.assign()
        self._follow_parameters()
        self._take_state()

    def _touching(self, tensors: list[torch.Tensor]) -> AbstractContextManager[None] | None:
        paged = {id(s.tensor): b for b, s in self.store.slots() if b.home is Home.PAGED}
        blocks = {paged[id(x)].address: paged[id(x)] for x in tensors if id(x) in paged}
        return self.hooks.touching(list(blocks.values())) if blocks else None

    # ---- Room ------------------------------------------------------------------------------

    def _grow(self, error: Exception, together: list[tuple[int, int]]) -> None:
        """Uses that nest find no room, though all pages that could leave have: activations do."""
        others = self.manager.held() + self.manager.uncounted()
        pages = Size(self._grain).plus(together, self.pager.stats()["pinned_bytes"])
        needed = pages.bytes + others
        if self.activations.make_room(needed - self.budget):
            return
        raise used_together(needed, others, self.budget) from error

    # ---- Forward ---------------------------------------------------------------------------

    def _begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if in_backward():
            return  # the root itself is being recomputed
        refuse_trace()
        self._threads.forward_begins(id(sys._getframe(1)))
        tensors = self._prepare("", args, kwargs)
        self.hooks.between.stop()
        self.manager.torch.pass_begins(self.manager.who_has_what, anew=False)
        self.hooks.pass_begins()
        self._running = True
        if torch.is_grad_enabled() and self._passing is not None:
            self.activations.pass_begins(*self._passing, tensors)

    def _part_begins(self, name: str, args: Any, kwargs: Any) -> None:
        """A module is called by itself; those up to backward are a step's forward together."""
        self._stepper.used()
        if torch.is_grad_enabled() and not self._sized:
            self._prepare(name, args, kwargs)
            self.manager.torch.pass_begins(self.manager.who_has_what, anew=False)
            self.hooks.between.start(pending=True)

    def _prepare(self, name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Room, and what the loop has done meanwhile; the tensors that go in."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self._size(name, tensors)
        self._sized = trains = torch.is_grad_enabled()
        self._look_for_changes(trains=trains)
        if trains and self.hooks.was_backward and not any(unit.parameters for unit in self._units):
            self._after_step(0)  # there may be none
        self._stepper.forward_begins(trains=trains)
        return tensors

    def _ends(self, model: nn.Module, args: Any, output: Any) -> None:
        if not self._running or in_backward():
            return
        self._running = False
        # Of a forward that returns, it is another's: who handles that may run the model.
        error = sys.exc_info()[1] if output is None else None
        self.manager.explain(error)
        failed = self.activations.pass_ends(error)
        self.hooks.pass_ends()
        self.passes += 1
        if failed:
            self.leave_watch()
        if not torch.is_grad_enabled():
            if not self.activations.pending:
                self.manager.torch.pass_ends()
            self.hooks.evaluation_ends()
            self.pager.iteration()
            self._learn_need()
            return self._threads.forward_ends()
        for value in tree_leaves(dict(output) if isinstance(output, Mapping) else output):
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                value.grad_fn.register_prehook(self.hooks.pass_made)
        self.hooks.between.start(pending=True)
        self._threads.forward_ends()

    # ---- The step --------------------------------------------------------------------------

    def _step(self, **more: Any) -> None:
        with self._threads.step(id(sys._getframe())):
            self._look_for_changes(trains=True)
            self._stepper.step(**more)

    def _before_large(self) -> None:  # in forward, and as backward begins
        if in_backward():
            self._threads.backward_begins()
            self._stepper.backward_begins()
        self._share.join_pieces()

    def _backward_ends(self) -> None:
        self._sized = False
        self._stepper.backward_ends()
        self.activations.backward_ends()

    def _after_step(self, steps: int = 1) -> None:
        self.manager.torch.pass_ends()
        self.hooks.iteration_ends()
        self.steps += steps
        self.pager.iteration()
        self._learn_need()
        self.activations.step_ends()

    def _learn_need(self) -> None:
        if self._passing is not None:
            self._share.ends(*self._passing)

    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes in here add to gradients and update nothing.

        The next backward outside updates with the sums, as does optimizer.step().
        """
        return self._stepper.accumulate()

    def drop_gradients(self) -> None:
        """Forget what was accumulated: what zero_grad() is to an ordinary model."""
        self.optimizer.zero_grad()

    def abandon_step(self) -> None:
        """After a backward that failed: the next gradients are those of another step.

        What it has updated by then stays updated.
        """
        self.activations.failed(sys.exc_info()[1])
        self.leave_watch()
        self._stepper.abandon()
        self.drop_gradients()

    def leave_watch(self) -> None:
        """Within a step that failed: no mode of ours stays on top of the caller's."""
        self.hooks.leave_watch()
        self.manager.torch.pass_ends()

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """With clip_norm: the 2-norm of all gradients before the last step; shape ()."""
        return self._stepper.grad_norm

    def _take_state(self) -> None:
        """What state there is moves into blocks, a unit at a time."""
        for unit in self._units:
            self._state.take(unit)
            if unit.own:
                self._stepper.define_update(unit)

    # ---- The rest --------------------------------------------------------------------------

    def _before_load(self, module: nn.Module, *_: Any) -> None:  # within, torch wraps errors
        self._stepper.touched(block.address for block, _ in self._slots[module])

    def _state_dict(self, module: nn.Module, *more: Any) -> None:
        self._stepper.touched(block.address for block, _ in self._slots[module])
        super()._state_dict(module, *more)

    def stats(self) -> TrainingStats:
        """Counters and sizes of the pager, and what they amount to."""
        return summarize_training(
            figures(self),
            trained=self._trained_bytes(),
            state=self._state.nbytes,
            moved=self.activations.last,
            steps=self.steps,
            updates_in_backward=self._stepper.in_backward,
        )

    def detach(self, *, keep: bool = True) -> nn.Module:
        """Give an ordinary model and optimizer back, on the CPU, with the current content.

        Args:
            keep: Whether the content is wanted. Without it the model's tensors are left empty and
                the optimizer's state is dropped.
        """
        if self._pager is None:
            return self.model
        self.hooks.abandon()
        self.manager.torch.pass_ends()  # of a step that was given up
        self.manager.torch.synchronize()
        self.activations.close()
        parameters = list(self.model.parameters())
        gradients = self._held.take_out(parameters, keep=keep)
        self._state.move_out(keep=keep)
        model: nn.Module = super().detach(keep=keep)
        self.hooks.drop_graphs()
        for number, gradient in gradients.items():
            if parameters[number].dtype is gradient.dtype:  # and not what was converted meanwhile
                parameters[number].grad = gradient
        return model
