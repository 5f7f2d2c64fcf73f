# SPDX-License-Identifier: Apache-2.0
"""The update of one large parameter, by rows.

An embedding of 128,256 tokens is a tenth of a Llama-3B, and its update touches it, and its state,
whole: the room for that would be missing for everything else, in all of the step. Where the
optimizer treats each element by itself, rows can be updated one group of them after the other, each
in a use of its own, with the same result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .hooks import TrainingUses
from .state import Piece, StateStore
from .units import Unit
from .update import Update

LARGE = 1 / 16  # of the budget: updates that take more are cut
PART = 1 / 32  # of the budget, in which a part of them is to fit
GRAIN = 64  # rows begin at multiples of so many, as vector instructions do


Parts = list[tuple[int, int, int]]  # the first row of each, that behind its last one, and its use


class RowUpdates:
    """Updates large parameters part by part.

    Args:
        update: The optimizer.
        uses: Declares uses.
        state: The optimizer's state.
        budget: Bytes.
    """

    def __init__(
        self, update: Update, uses: TrainingUses, state: StateStore, *, budget: int
    ) -> None:
        self._update = update
        self._uses = uses
        self._state = state
        self._large, self._part = int(budget * LARGE), int(budget * PART)
        # By the addresses of a parameter and its state.
        self._cuts: dict[tuple[int, ...], Parts] = {}

    def __call__(self, unit: Unit, parameter: nn.Parameter, **more: Any) -> bool:
        """Update the parameter, which has a gradient; whether it was one to be cut.

        Args:
            unit: Its unit.
            parameter: It; the only one of the unit that is updated.
            more: Further keyword arguments of the optimizer's step().
        """
        parts = self._parts(unit, parameter)
        if len(parts) < 2:
            return False
        self._uses.close_backward(unit)  # else all rows would stay meanwhile
        before = self._update.state_of(parameter)
        ends: dict[str, Any] = {}
        for first, last, use in parts:
            with self._uses.during(use):
                ends = self._update.rows(parameter, first, last, **more)
        for key, value in ends.items():
            if isinstance(value, torch.Tensor):
                before[key].copy_(value)
            else:
                before[key] = value
        return True

    def _parts(self, unit: Unit, parameter: nn.Parameter) -> Parts:
        pieces = self._state.parts_of(unit.parameters)
        nbytes = parameter.nbytes + sum(piece.nbytes for piece in pieces)
        grad = parameter.grad
        if nbytes <= self._large or not self._update.elementwise or parameter.dim() < 2:
            return []
        if (
            unit.parameters != [parameter]
            or type(parameter) is not nn.Parameter
            or not parameter.is_contiguous()
            or type(grad) is not torch.Tensor
            or grad.layout != torch.strided
            or self._state.outside(unit)
            or not all(isinstance(x, Piece) and x.shape == parameter.shape for x in pieces)
            or not self._update.state_of(parameter)
        ):
            return []
        key = (parameter.data_ptr(), *(piece.address for piece in pieces))
        if key not in self._cuts:
            parts: Parts = []
            rows = parameter.shape[0]
            each = max(GRAIN, rows * self._part // nbytes // GRAIN * GRAIN)
            where = [(parameter.data_ptr(), parameter.nbytes // rows)]
            where += [(piece.address, piece.nbytes // rows) for piece in pieces]
            for first in range(0, rows, each):
                last = min(rows, first + each)
                name = f"{unit.name} (update of rows {first} to {last})"
                rows_of = [(at + first * row, (last - first) * row, True) for at, row in where]
                within = (*(at for at, _ in where), *(block.address for block in unit.own))
                parts.append((first, last, self._uses.define(name, rows_of, within)))
            self._cuts[key] = parts
        return self._cuts[key]
