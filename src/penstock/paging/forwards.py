# SPDX-License-Identifier: Apache-2.0
"""Forwards of modules that are ours for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

Forward = Callable[..., Any]


class Forwards:
    """Puts forwards in the place of modules' own, and takes them off again."""

    def __init__(self) -> None:
        self._replaced: dict[nn.Module, tuple[Forward, Forward | None]] = {}  # ours, and before

    def replace(self, module: nn.Module, ours: Forward) -> None:
        """Have the module's calls come to this one."""
        before = module.__dict__.get("forward")
        module.__dict__["forward"] = ours
        self._replaced[module] = ours, before

    def restore(self, modules: Iterable[nn.Module] | None = None) -> None:
        """Give these their own back, or all; one that somebody has wrapped in turn keeps ours."""
        for module in list(self._replaced if modules is None else modules):
            ours, before = self._replaced.pop(module, (None, None))
            if ours is None or module.__dict__.get("forward") is not ours:
                continue
            del module.__dict__["forward"]
            if before is not None:
                module.__dict__["forward"] = before
