# SPDX-License-Identifier: Apache-2.0
"""What stands in an optimizer's groups beside parameters, over a step that is taken in pieces.

Some optimizers keep numbers there that a step changes, such as a count of steps. Each piece of a
step finds them as they were before the first one, so what a step makes of them counts once. What
the loop changes there between the first update in backward and optimizer.step() comes too late for
that update; it is found here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_NOTHING = object()  # what a key that is not there yet stands for
_PLAIN = bool, int, float, complex, str, tuple, list, dict, type(None)


def _values(group: dict[str, Any]) -> dict[str, tuple[Any, int]]:
    """What a group says, each with the version that a tensor has."""
    return {
        key: (value, value._version if isinstance(value, torch.Tensor) else 0)
        for key, value in group.items()
        if key != "params"
    }


def _same(before: tuple[Any, int], now: tuple[Any, int]) -> bool:
    if before[0] is now[0]:
        return before[1] == now[1]
    kinds = type(before[0]), type(now[0])
    return all(kind in _PLAIN for kind in kinds) and bool(before[0] == now[0])


class _Kept:
    """What stands under a key, to be put there again; a tensor with its content of now."""

    def __init__(self, group: dict[str, Any], key: str, value: Any) -> None:
        self._group, self._key, self._value = group, key, value
        self._content = self._value.clone() if isinstance(self._value, torch.Tensor) else None

    def put(self) -> None:
        """There it is again, in the tensor in which it was: others may have it too."""
        if self._value is _NOTHING:
            self._group.pop(self._key, None)
            return
        if self._content is not None:
            self._value.copy_(self._content)
        self._group[self._key] = self._value


class Groups:
    """The groups of one optimizer.

    Args:
        optimizer: It.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        # By group and key: what was there before the step, and what is there now.
        self._written: dict[tuple[int, str], tuple[_Kept, _Kept]] = {}
        self._seen: list[tuple[dict[str, Any], dict[str, tuple[Any, int]]]] = []

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Around a step for some parameters."""
        for before, _ in self._written.values():
            before.put()
        starts = [
            (group, values, {k: _Kept(group, k, v) for k, (v, _) in values.items()})
            for group in self._optimizer.param_groups
            for values in [_values(group)]
        ]
        yield
        found = {}
        for group, values, kept in starts:
            for key, value in _values(group).items():
                if key not in values or not _same(values[key], value):
                    before = kept.get(key) or _Kept(group, key, _NOTHING)
                    found[id(group), key] = before, _Kept(group, key, value[0])
        for place, (_, after) in self._written.items():
            if place not in found:  # a piece that had nothing to do there
                after.put()
        self._written.update(found)

    def update_begins(self) -> None:
        """The first gradient of a step is whole: what an update in backward goes by."""
        if not self._seen:
            self._seen = [(group, _values(group)) for group in self._optimizer.param_groups]

    def changed(self) -> list[str]:
        """The keys of what the loop has changed since, in a group that was there."""
        groups = {id(group) for group in self._optimizer.param_groups}
        return [
            key
            for group, values in self._seen
            if id(group) in groups
            for key, value in _values(group).items()
            if (id(group), key) not in self._written
            and not (key in values and _same(values[key], value))
        ]

    def step_ends(self) -> None:
        """The next piece is another step's."""
        self._written.clear()
        self._seen = []
