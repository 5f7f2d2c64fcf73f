# SPDX-License-Identifier: Apache-2.0
"""Forwards of modules that are ours for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from types import MethodType
from typing import Any

from torch import nn

from .conversion import MOVES, SCRIPTS

_FORWARD, _STATE = "forward", "__getstate__"
Forward = Callable[..., Any]


class Forwards:
    """Puts forwards in the place of modules' own, and takes them off again."""

    def __init__(self) -> None:
        self._replaced: dict[nn.Module, tuple[Forward, Forward | None]] = {}  # ours, and before

    def replace(self, module: nn.Module, ours: Forward) -> None:
        """Have the module's calls come to this one."""
        before = module.__dict__.get(_FORWARD)
        module.__dict__.update({_FORWARD: ours, _STATE: partial(self._state, module)})
        self._replaced[module] = ours, before

    def restore(self, modules: Iterable[nn.Module] | None = None) -> None:
        """Give these their own back, or all; one that somebody has wrapped in turn keeps ours."""
        for module in list(self._replaced if modules is None else modules):
            ours, before = self._replaced.pop(module, (None, None))
            module.__dict__.pop(_STATE, None)
            if ours is None or module.__dict__.get(_FORWARD) is not ours:
                continue
            del module.__dict__[_FORWARD]
            if before is not None:
                module.__dict__[_FORWARD] = before

    def _state(self, module: nn.Module) -> Any:
        """What copy.copy() takes: without what of ours would lead back to this module."""
        get = getattr(type(module), _STATE, None)  # of every object from Python 3.11 on
        state = module.__dict__ if get is None else get(module)
        if not isinstance(state, dict):
            return state
        state = {
            name: value for name, value in state.items() if name not in (MOVES, SCRIPTS, _STATE)
        }
        ours, before = self._replaced[module]
        if state.get(_FORWARD) is ours:
            del state[_FORWARD]
            if before is not None:
                state[_FORWARD] = before
        return state


def bound_like(forward: Forward, ours: Forward, module: nn.Module) -> Forward:
    """Ours, which takes the module first, as the method or the function that a forward is."""
    if getattr(forward, "__self__", None) is module and hasattr(forward, "__func__"):
        return MethodType(wraps(forward.__func__)(ours), module)
    return wraps(forward)(partial(ours, module))


def own_forward(module: nn.Module) -> Forward:
    """The forward that the module's class gives it, whatever stands in its place."""
    instead = module.__dict__.pop(_FORWARD, None)
    try:
        own: Forward = module.forward
        return own
    finally:
        if instead is not None:
            module.__dict__[_FORWARD] = instead
