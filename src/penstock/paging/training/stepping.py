# SPDX-License-Identifier: Apache-2.0
"""When a parameter is updated, and with what gradient.

In backward, soon after the gradients of its unit are whole, where the loop is known to permit it.
Otherwise gradients move into blocks at that point, and the update is optimizer.step()'s. Small
units are updated together: a call of the optimizer takes the host as long for one tensor as for
many.
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from penstock.errors import UsageError
from penstock.units import MIB

from .gradients import HeldGradients
from .hooks import TrainingUses
from .kept import KeptGradient
from .loop import Loop
from .rows import RowUpdates
from .state import StateStore
from .units import Unit
from .update import Update
from .update_uses import UpdateUses

# Bytes of pages and gradients that are updated together. A step of AdamW over a list of tensors
# takes the host some 0.3 ms, in which 16 MiB cross the link; a few pages, where these are large.
# On an H100 128 and 384 MiB gave the same steps.
TOGETHER = 16 * MIB
PAGES = 4
SHARE = 1 / 32  # of the budget, where that is less
RECOMPUTED = 1 / 8  # of the budget: what a recomputed region has stay for its backward
_ACCUMULATE = ", or with attachment.accumulate(): around all but the last backward"


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of pages, each counted once, and of what lies elsewhere.

    Attributes:
        grain: Bytes of a page.
        pages: Their numbers.
        others: Bytes of the latter.
    """

    grain: int
    pages: frozenset[int] = frozenset()
    others: int = 0

    def plus(self, pieces: Iterable[tuple[int, int]], others: int) -> Size:
        """With the pages of these (address, bytes), and so many bytes elsewhere."""
        grain = self.grain
        ranges = (range(at // grain, -(-(at + nbytes) // grain)) for at, nbytes in pieces)
        return Size(grain, self.pages.union(*ranges), self.others + others)

    @property
    def bytes(self) -> int:
        """All of it."""
        return len(self.pages) * self.grain + self.others


class Stepper:
    """Updates the parameters of one model.

    Args:
        units: All of them.
        update: The optimizer.
        uses: Declares uses.
        state: The optimizer's state.
        held: Gradients for later.
        loop: What the loop permits.
        budget: Bytes.
        grain: Bytes of a page.
        clip_norm: Most 2-norm of all gradients; None for any.

    Attributes:
        grad_norm: With clip_norm, the norm before the last step clipped it; shape ().
    """

    def __init__(
        self,
        units: list[Unit],
        update: Update,
        uses: TrainingUses,
        state: StateStore,
        held: HeldGradients,
        loop: Loop,
        *,
        budget: int,
        grain: int,
        clip_norm: float | None,
    ) -> None:
        self.grad_norm: torch.Tensor | None = None
        self._units = units
        self._update = update
        self._uses = uses
        self._state = state
        self._held = held
        self._loop = loop
        self._clip_norm = clip_norm
        self._updates = UpdateUses(uses)
        self._by_rows = RowUpdates(update, uses, state, budget=budget)
        self._unit_of: dict[int, Unit] = {}
        self._frozen: set[int] = set()  # the addresses of blocks that no update writes
        self._arrived: dict[Unit, set[int]] = {}  # gradients that this backward has made
        self._had: set[int] = set()  # parameters to whose gradients it has added
        self._whole: dict[int, Unit] = {}  # addresses of weights that it should be through with
        self._grain = grain
        self._together = min(max(TOGETHER, PAGES * grain), int(budget * SHARE))
        uses.recomputed.most = int(budget * RECOMPUTED)
        # What is to be updated soon: parameters, and their units with paged blocks.
        self._ready: list[nn.Parameter] = []
        self._ready_units: list[Unit] = []
        self._ready_size = Size(grain)
        # In backward, and those whose gradients wait for step(): with the version of each then.
        self._updated: dict[torch.Tensor, int] = {}
        self._kept: dict[torch.Tensor, tuple[int, int]] = {}  # and with whose gradient
        uses.between.touched, uses.updated = self.touched, self._updated
        uses.between.rests = loop.in_backward
        uses.between.whole, uses.between.late = self._whole, self._used_late
        uses.between.failed = self._backward_failed
        self.assign()

    def assign(self) -> None:
        """Units have other parameters now."""
        self._unit_of = {id(p): unit for unit in self._units for p in unit.parameters}
        own = {block.address for unit in self._units for block in unit.own}
        self._frozen = {block.address for unit in self._units for block in unit.blocks} - own

    # ---- In backward -----------------------------------------------------------------------

    def backward_begins(self) -> None:
        """From here on updates may be in backward."""
        if self._loop.may_turn():
            paged = [p for unit in self._units if unit.own for p in unit.parameters]
            waits = any(_waits(p) and not _is_zero(p) for p in paged)
            self._loop.in_backward = bool(paged) and not waits

    @property
    def in_backward(self) -> bool:
        """Whether anything is updated there by now."""
        return self._loop.in_backward and any(unit.own for unit in self._units)

    def has_updated(self, parameter: torch.Tensor) -> bool:
        """Whether this step's backward has updated it."""
        return parameter in self._updated

    def gradient_is_whole(self, parameter: torch.Tensor) -> None:
        """This backward pass has added all it has to the parameter's gradient."""
        self._uses.enter_backward()
        if not self._loop.accumulating:
            self._update.groups.update_begins()
        unit = self._unit_of.get(id(parameter))
        if unit is None:
            return  # it was taken out of the optimizer
        if isinstance(parameter.grad, KeptGradient) and parameter.grad.place is None:
            with parameter.grad.opened() as content:  # added to what zero_grad() had set to 0
                parameter.grad = content
        nested = self._uses.nested_backward() and unit.calls > 1
        if parameter in self._updated and not nested:
            raise self._updated_already("another backward", parameter, _ACCUMULATE)
        unit.late |= id(parameter) in self._had
        self._had.add(id(parameter))
        arrived = self._arrived.setdefault(unit, set())
        arrived.add(id(parameter))
        if nested or (unit.late and not self._loop.keeps):
            return  # recomputation by a backward pass within this one: there may be more to add
        if len(arrived) == len(unit.parameters):
            self._gradients_are_whole(unit)

    def _gradients_are_whole(self, unit: Unit) -> None:
        arrived = self._arrived.pop(unit)
        if not unit.own:
            return  # what stays is updated by step(), and its gradients are the loop's till then
        if self._loop.keeps:
            self._held.hold(unit)
            kept = (p for p in unit.parameters if isinstance(p.grad, KeptGradient))
            self._kept |= {p: _noted(p) for p in kept}
            self._uses.close_backward(unit)
            self._is_through_with(unit)
            return
        if not self._loop.checked:
            _refuse_scaler()
            self._loop.checked = True
        some = [p for p in unit.parameters if id(p) in arrived and p.grad is not None]
        size = self._with(unit, some, self._ready_size)
        if size.bytes > self._together and self._ready_units:
            self._update_ready()
            size = self._with(unit, some, self._ready_size)
        self._ready_units.append(unit)
        self._ready_size = size
        self._ready += some
        if self._ready_size.bytes >= self._together:
            self._update_ready()

    def backward_ends(self) -> None:
        """What waited for the end, and units of which only a part was used."""
        for unit in list(self._arrived):
            self._gradients_are_whole(unit)
        if not self._loop.keeps:
            self._update_ready()
        self._forget_backward()
        self._loop.backward_ended()

    def _is_through_with(self, unit: Unit) -> None:
        # Of several tensors in one storage, others may still be in use.
        alone = (b for b in unit.own if len({id(slot.tensor) for slot in b.slots}) == 1)
        self._whole.update((block.address, unit) for block in alone)

    def _used_late(self, address: int) -> None:
        """A detached use of weights, a hook, a recomputation: what it sees is to be as before."""
        unit = self._whole[address]
        unit.late = True
        if not self._loop.keeps:
            some = next(p for p in unit.parameters if p in self._updated)
            raise self._updated_already("a use of weights in backward", some)

    def _backward_failed(self, error: Exception) -> None:
        """Over a graph once more, backward needs weights as they were: torch asks who wrote them.

        Raises:
            UsageError: If the updates did; or if DDP wants gradients to lie in its own memory.
        """
        if "gradient_as_bucket_view" in str(error):
            raise UsageError(
                "gradients of an attached model cannot lie in DistributedDataParallel's buckets",
                remedy="DistributedDataParallel(..., gradient_as_bucket_view=False)",
            ) from error
        found = re.search(r" \[([\d, ]*)\]\].* is at version (\d+); expected", str(error))
        if found is None:
            return
        elements, version = math.prod(map(int, found[1].split(", "))), int(found[2])
        for parameter in self._updated:
            if parameter.numel() == elements and parameter._version == version:
                again = "another backward over the same graph"
                raise self._updated_already(again, parameter, _ACCUMULATE) from error

    def _forget_backward(self) -> None:
        self._had.clear()
        self._whole.clear()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes in here update nothing."""
        before, self._loop.accumulating = self._loop.accumulating, True
        try:
            yield
        finally:
            self._loop.accumulating = before

    def abandon(self) -> None:
        """A backward broke off: the next gradients are those of another step."""
        self._arrived.clear()
        self._forget_step()
        for unit in self._units:
            unit.calls = 0
        self._loop.failed()

    # ---- Between steps ---------------------------------------------------------------------

    def forward_begins(self, *, trains: bool) -> None:
        """A pass begins."""
        self._loop.weights_touched()
        self._forget_backward()  # of one that failed
        if not trains:
            if self._updated and self._loop.stepless:
                raise self._updated_already("a forward pass", next(iter(self._updated)))
            return
        self._held.forget()
        if self._state.shared():
            if self._loop.in_backward:
                raise UsageError(
                    "parameters share state of the optimizer: what each becomes depends on which "
                    "is updated first, and backward updates them in another order",
                    remedy="attach_training(..., step_in_backward=False)",
                )
            self._loop.gradient_touched()

    def step(self, **more: Any) -> None:
        """What optimizer.step() is to do, for all parameters that have gradients."""
        self._look_at_the_loop()
        with torch.no_grad():
            scale = self._scale()
            for units, some in self._waiting():
                self._step(units, some, scale, **more)
            paged = {id(p) for unit in self._units if unit.own for p in unit.parameters}
            rest = [p for p in self._update.parameters() if id(p) not in paged and _waits(p)]
            _multiply(rest, scale)
            with self._held.given_back(rest):
                if rest or not self._update.begun:
                    self._update(rest, **more)
        self._forget_step()
        self._loop.stepped()

    def _forget_step(self) -> None:
        self._take_ready()
        self._forget_backward()
        self._updated.clear()
        self._kept.clear()
        self._update.step_ends()

    def touched(self, addresses: Iterable[int]) -> None:
        """Code outside the model reads or changes these weights or state."""
        if not self._frozen.issuperset(addresses):
            self.used()
        self._loop.weights_touched()

    def used(self) -> None:
        """It does so with what updates change."""
        self._loop.weights_touched()
        if self._updated and self._loop.stepless:
            raise self._updated_already("a use of weights or state", next(iter(self._updated)))

    def _look_at_the_loop(self) -> None:
        """What it has done since backward that an update there cannot have known of.

        Raises:
            UsageError: If there was one.
        """
        changed = self._update.groups.changed()
        if changed or any(_noted(p) != noted for p, noted in self._kept.items()):
            self._loop.gradient_touched()
        grouped = self._update.grouped() if self._updated else {}
        for parameter, version in self._updated.items():
            if id(parameter) not in grouped:
                raise self._updated_already("a parameter taken out of the groups", parameter)
            if grouped[id(parameter)] != self._update.group_of(parameter):
                raise self._updated_already("a move to another group", parameter)
            if changed:
                raise self._updated_already(f"a change of {changed[0]!r} after backward", parameter)
            if not self._held.is_spent(parameter):
                raise self._updated_already("another gradient after backward", parameter)
            if parameter._version != version:
                raise self._updated_already("a change of weights after backward", parameter)

    def _updated_already(self, what: str, parameter: torch.Tensor, more: str = "") -> UsageError:
        name = self._held.name_of(parameter)
        return UsageError(
            f"{what}, before optimizer.step(): backward has updated {name} already, as "
            "steps had gone straight from backward to optimizer.step()",
            remedy=f"attach_training(..., step_in_backward=False){more}",
        )

    def _waiting(self) -> Iterator[tuple[list[Unit], list[nn.Parameter]]]:
        """Units that have gradients, as many as are updated together, with their parameters."""
        units: list[Unit] = []
        some: list[nn.Parameter] = []
        size = Size(self._grain)
        for unit in self._units:
            own = [p for p in unit.parameters if _waits(p)] if unit.own else []
            if not own:
                continue
            more = self._with(unit, own, size)
            if more.bytes > self._together and units:
                yield units, some
                units, some = [], []
                more = self._with(unit, own, Size(self._grain))
            units, some, size = [*units, unit], some + own, more
        if units:
            yield units, some

    def _scale(self) -> torch.Tensor | None:
        """What gradients are multiplied with, by the formula of clip_grad_norm_."""
        waiting = [p for p in self._update.parameters() if _waits(p)]
        if self._clip_norm is None or not waiting:
            return None
        norms = torch.stack([self._held.norm_of(p) for p in waiting])
        self.grad_norm = torch.linalg.vector_norm(norms)
        return torch.clamp(self._clip_norm / (self.grad_norm + 1e-6), max=1.0)

    # ---- Updates ---------------------------------------------------------------------------

    def _take_ready(self) -> tuple[list[Unit], list[nn.Parameter]]:
        ready = self._ready_units, self._ready
        self._ready_units, self._ready, self._ready_size = [], [], Size(self._grain)
        return ready

    def _update_ready(self) -> None:
        """Update what has waited in this backward."""
        units, some = self._take_ready()
        if some:
            with torch.no_grad():
                self._step(units, some, None)
            for parameter in some:
                self._held.spend(self._unit_of[id(parameter)], parameter)
                self._updated[parameter] = parameter._version
        for unit in units:
            self._uses.close_backward(unit)
            self._is_through_with(unit)

    def _with(self, unit: Unit, some: list[nn.Parameter], size: Size) -> Size:
        """So much, and what the update of these takes."""
        state = self._state.parts_of(unit.parameters)
        pieces = [(part.address, part.nbytes) for part in (*unit.own, *state)]
        weights = sum(p.nbytes for p in some)
        others = weights if state else 3 * weights  # gradients, and state to be made
        return size.plus(pieces + self._held.ranges_of(some), others)

    def _step(
        self,
        units: list[Unit],
        some: list[nn.Parameter],
        scale: torch.Tensor | None,
        **more: Any,
    ) -> None:
        with self._held.given_back(some):
            _multiply(some, scale)
            if len(some) == len(units) == 1 and self._by_rows(units[0], some[0], **more):
                return
            for unit in units:  # whose state may be another's since
                self.define_update(unit)
            with self._updates.around(units):
                self._update(some, **more)
                moved = [unit for unit in units if self._state.adopt(unit)]
            for unit in moved:
                self.define_update(unit)

    def define_update(self, unit: Unit) -> None:
        """The unit's update touches the state that it has by now."""
        self._updates.define(unit, self._state.parts_of(unit.parameters))


def _noted(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter._version, id(parameter.grad)


def _waits(parameter: nn.Parameter) -> bool:
    """Whether it has a gradient that optimizer.step() is to use."""
    grad = parameter.grad
    return not grad.gone if isinstance(grad, KeptGradient) else grad is not None


def _is_zero(parameter: nn.Parameter) -> bool:
    """Whether zero_grad() is known to have set it to zero."""
    return isinstance(parameter.grad, KeptGradient) and parameter.grad.zeroed


def _refuse_scaler() -> None:
    """Before the first update in backward: whether gradients are scaled does not show in them."""
    for value in gc.get_objects():
        if issubclass(type(value), torch.amp.GradScaler) and value._scale is not None:
            raise UsageError(
                "gradients scaled by a GradScaler cannot be updated in backward",
                remedy="attach_training() without step_in_backward=True, or autocast to bfloat16",
            )


def _multiply(parameters: list[nn.Parameter], scale: torch.Tensor | None) -> None:
    for parameter in parameters:
        if scale is not None and parameter.grad is not None:
            parameter.grad.mul_(scale)
