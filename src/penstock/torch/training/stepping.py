# SPDX-License-Identifier: Apache-2.0
"""When a parameter is updated, and with what gradient.

In backward, as soon as the gradients of its unit are whole; small parameters that always stay on
the device wait for the next unit, so that one fused call does both. Where gradients are to be held
(accumulation, clipping), they move into blocks at that point, and the update is optimizer.step()'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from penstock.errors import UsageError

from .gradients import HeldGradients
from .state import StateStore
from .units import Unit
from .update import Update
from .uses import TrainingUses


class Stepper:
    """Updates the parameters of one model.

    Args:
        units: All of them.
        update: The optimizer.
        uses: Declares uses.
        state: The optimizer's state.
        held: Gradients for later.
        hold: Whether all updates wait for optimizer.step().
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
        *,
        hold: bool,
        clip_norm: float | None,
    ) -> None:
        self.grad_norm: torch.Tensor | None = None
        self._units = units
        self._update = update
        self._uses = uses
        self._state = state
        self._held = held
        self._hold = hold
        self._clip_norm = clip_norm
        self._accumulating = False
        self._unit_of = {id(p): unit for unit in units for p in unit.parameters}
        self._ready: list[nn.Parameter] = []  # of units without paged blocks
        self._updated: set[int] = set()

    # ---- In backward -----------------------------------------------------------------------

    def gradient_is_whole(self, parameter: torch.Tensor) -> None:
        """This backward pass has added all it has to the parameter's gradient."""
        self._uses.enter_backward()
        unit = self._unit_of[id(parameter)]
        if self._uses.nested_backward() and unit.calls > 1:
            return  # recomputation by a backward pass within this one: there may be more to add
        if id(parameter) in self._updated:
            raise UsageError(
                "backward ran twice over the same parameters before optimizer.step(), and the "
                "first pass has updated them already",
                remedy="with attachment.accumulate(): around all but the last backward",
            )
        if all(p.grad is not None for p in unit.parameters):
            self._gradients_are_whole(unit)

    def _gradients_are_whole(self, unit: Unit) -> None:
        if self._hold or self._accumulating:
            if unit.own:
                self._held.hold(unit)
                self._uses.close_backward(unit)
        elif unit.own:
            self._step(unit)
        else:
            self._ready += [p for p in unit.parameters if p.grad is not None]

    def backward_ends(self) -> None:
        """What waited for the end, and units of which only a part was used."""
        for unit in self._units:
            if unit.own and any(p.grad is not None for p in unit.parameters):
                self._gradients_are_whole(unit)
        if not self._hold and not self._accumulating:
            self._step_rest(None)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes in here update nothing."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def drop(self) -> None:
        """Forget gradients that are held, or wait for the end of a backward."""
        self._ready = []
        self._held.drop()

    # ---- Around optimizer.step() -----------------------------------------------------------

    def before_step(self) -> None:
        """Update whatever has gradients left."""
        if getattr(self._update.optimizer, "grad_scale", None) is not None:
            raise UsageError(
                "gradients scaled by a GradScaler cannot be updated in backward",
                remedy="autocast to torch.bfloat16, which needs no scaler",
            )
        with torch.no_grad():
            scale = self._scale()
            for unit in self._units:
                waits = any(parameter.grad is not None for parameter in unit.parameters)
                if unit.own and (waits or unit in self._held):
                    self._step(unit, scale)
            self._step_rest(scale)

    def after_step(self) -> None:
        """The next gradients are those of another step."""
        self._updated.clear()

    def _scale(self) -> torch.Tensor | None:
        """What gradients are multiplied with, by the formula of clip_grad_norm_."""
        if self._clip_norm is None:
            return None
        norm = self._held.norm(self._update.parameters())
        if norm is None:
            return None
        self.grad_norm = norm
        return torch.clamp(self._clip_norm / (norm + 1e-6), max=1.0)

    # ---- Updates ---------------------------------------------------------------------------

    def _step(self, unit: Unit, scale: torch.Tensor | None = None) -> None:
        """Update the unit's parameters that have gradients, and those that are ready."""
        with self._held.given_back(unit):
            some = [p for p in unit.parameters if p.grad is not None]
            _multiply(some, scale)
            some += self._ready
            self._ready = []
            with self._uses.updating(unit):
                self._update(some)
                moved = self._state.adopt(unit)
            if moved:
                self.define_update(unit)
            self._are_updated(some)
        self._uses.close_backward(unit)

    def define_update(self, unit: Unit) -> None:
        """The unit's update touches the state that it has by now."""
        pieces = [(piece.address, piece.nbytes) for piece in self._state.pieces_of(unit)]
        self._uses.define_update(unit, pieces)

    def _step_rest(self, scale: torch.Tensor | None) -> None:
        """Update what stays on the device and has gradients."""
        self._ready = []
        loose = [unit for unit in self._units if not unit.own]
        rest = [p for unit in loose for p in unit.parameters if p.grad is not None]
        _multiply(rest, scale)
        if rest:
            self._update(rest)
            self._are_updated(rest)

    def _are_updated(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.grad = None
            self._updated.add(id(parameter))


def _multiply(parameters: list[nn.Parameter], scale: torch.Tensor | None) -> None:
    for parameter in parameters:
        if scale is not None and parameter.grad is not None:
            parameter.grad.mul_(scale)
