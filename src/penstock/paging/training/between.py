# SPDX-License-Identifier: Apache-2.0
"""Weights and state that code outside the model touches: averages, logs, checks, changes by hand.

Between steps they lie wherever the plan has left them. While this mode is on, each operator that
touches one has it brought in, as written, and gone again after it. It is off while the model
runs: there modules' hooks do that, at no cost for each operator.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..leaves import tree_leaves
from ..modes import PassMode, leave_over, on_top_is_the_programs
from ..watch import block_of
from ..wrappers import plain_parts
from .kept import each, length


class Part(Protocol):
    """A block, or a piece of the optimizer's state."""

    address: int

    @property
    def nbytes(self) -> int:
        """Bytes."""

    @property
    def name(self) -> str:
        """For reports."""


class Between(PassMode):
    """The mode; on and off as often as wanted.

    Attributes:
        touched: Called when an operator has touched one.

    Args:
        parts: Those that page, by the address of their device bytes; more may come.
        covered: Whether a running use covers it.
        touching: Around work that reads and writes such.
    """

    def __init__(
        self,
        parts: dict[int, Part],
        covered: Callable[[Part], bool],
        touching: Callable[[list[Part]], AbstractContextManager[None]],
    ) -> None:
        super().__init__()
        self.parts = parts
        self._covered = covered
        self._touching = touching
        self.touched: Callable[[], None] = lambda: None
        self._on = False

    def start(self) -> None:
        """On, unless the program's are: they are left in the order in which they were entered."""
        leave_over()
        if not self._on and not on_top_is_the_programs():
            self.__enter__()
            self._on = True

    def stop(self) -> None:
        """Off; not possible while another mode was entered after it."""
        if self._on and _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)
            self._on = False
            leave_over()

    def end(self) -> None:
        """Off for good; at the latest with another attachment's mode that lies on top of it."""
        self.stop()
        self.parts = {}
        self.over = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found: dict[int, Part] = {}
        if not func.is_view:
            for leaf in tree_leaves((args, kwargs)):
                for tensor in plain_parts(leaf):
                    part = block_of(tensor, self.parts)
                    if part is not None and not self._covered(part):
                        found[part.address] = part
        if not found:
            return func(*args, **kwargs)
        self.touched()
        if min(len(found), length(args)) > 1 and func._schema.name.startswith("aten::_foreach_"):
            with self:  # one by one: together they might not fit
                return each(func, args, kwargs)
        with self._touching(list(found.values())):
            return func(*args, **kwargs)
