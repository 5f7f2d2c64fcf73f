# SPDX-License-Identifier: Apache-2.0
"""Weights that code outside the model touches: moving averages, logs, checks, changes by hand.

Between steps blocks lie wherever the plan has left them. While this mode is on, each operator that
touches a block has it brought in, as written, and gone again after it. It is off while the model
runs: there modules' hooks do that, at no cost for each operator.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from ..blocks import Block
from ..leaves import tree_leaves
from ..modes import leave_over, on_top_is_the_programs
from ..watch import block_of
from .kept import each


class Between(TorchDispatchMode):
    """The mode; on and off as often as wanted.

    Args:
        blocks: Paged blocks by the address of their device bytes.
        covered: Whether a running use covers the block.
        touching: For blocks: around work that reads and writes them.
    """

    def __init__(
        self,
        blocks: dict[int, Block],
        covered: Callable[[Block], bool],
        touching: Callable[[list[Block]], AbstractContextManager[None]],
    ) -> None:
        super().__init__()
        self._blocks = blocks
        self._covered = covered
        self._touching = touching
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
        """Off for good."""
        self.stop()
        self._blocks = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found: dict[int, Block] = {}
        if not func.is_view:
            for leaf in tree_leaves((args, kwargs)):
                block = block_of(leaf, self._blocks)
                if block is not None and not self._covered(block):
                    found[block.address] = block
        if not found:
            return func(*args, **kwargs)
        if len(found) > 1 and func._schema.name.startswith("aten::_foreach_"):
            with self:  # one by one: together they might not fit
                return each(func, args, kwargs)
        with self._touching(list(found.values())):
            return func(*args, **kwargs)
