# SPDX-License-Identifier: Apache-2.0
"""Uses of updates: what the optimizer touches as it steps some of its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .between import Part
from .hooks import TrainingUses
from .units import Unit

Pieces = tuple[tuple[int, int], ...]  # address and bytes of each


class UpdateUses:
    """Declares them, each once.

    Args:
        uses: Declares uses.
    """

    def __init__(self, uses: TrainingUses) -> None:
        self._uses = uses
        self._by_pieces: dict[tuple[Unit | None, Pieces], int] = {}
        self._pieces: dict[Unit, Pieces] = {}

    def define(self, unit: Unit, state: list[Part]) -> None:
        """The unit's update touches its parameters' blocks and these of state."""
        found = dict.fromkeys((part.address, part.nbytes) for part in (*unit.own, *state))
        self._pieces[unit] = tuple(found)
        self._define(unit, f"{unit.name} (update)", self._pieces[unit])

    @contextmanager
    def around(self, units: list[Unit]) -> Iterator[None]:
        """Around the update of these, which have been defined."""
        units = [unit for unit in units if self._pieces[unit]]
        if not units:
            yield
            return
        unit, pieces = units[0], self._pieces[units[0]]
        name = f"{unit.name} (update)"
        if len(units) > 1:
            name += f", and {len(units) - 1} more"
            pieces = tuple(dict.fromkeys(piece for each in units for piece in self._pieces[each]))
        with self._uses.during(self._define(unit if len(units) == 1 else None, name, pieces)):
            yield

    def _define(self, unit: Unit | None, name: str, pieces: Pieces) -> int:
        if (unit, pieces) not in self._by_pieces:
            use = self._uses.define(name, [(*piece, True) for piece in pieces])
            self._by_pieces[unit, pieces] = use
        return self._by_pieces[unit, pieces]
