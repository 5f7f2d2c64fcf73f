# SPDX-License-Identifier: Apache-2.0
"""Reads of weights from their modules by code that has not read them before, within a pass.

A module's tables (tables.py) tell of every read. Most are covered by the module's own use; others
the first iterations have watched, operator by operator, and know for what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType

import torch

from ..blocks import Block
from ..looks import walker
from ..wrappers import plain_parts
from .nodes import in_backward

_BEHIND_THE_TABLE = 3  # its methods, and the module's


class NewReads:
    """Readers of tables.

    Attributes:
        in_pass: Whether forward runs.

    Args:
        blocks: Paged blocks, by the identity of each tensor.
        covered: Whether a running use covers a block.
        found: Called when a line of code reads an uncovered one for the first time.
    """

    def __init__(
        self,
        blocks: Mapping[int, Block],
        covered: Callable[[Block], bool],
        found: Callable[[], None],
    ) -> None:
        self.in_pass = False
        self._blocks = blocks
        self._covered = covered
        self._found = found
        self._known: set[tuple[int, CodeType, int]] = set()

    def read(self, tensor: torch.Tensor) -> None:
        """As of Readers."""
        if self._is_new(tensor):
            self._look(tensor, sys._getframe(1 + _BEHIND_THE_TABLE))

    def listed(self, tensor: torch.Tensor) -> None:
        """As of Readers."""
        if self._is_new(tensor):
            self._look(tensor, walker(sys._getframe(1)))

    def _is_new(self, tensor: torch.Tensor) -> bool:
        if not (self.in_pass or in_backward()):
            return False  # operators that touch weights are seen
        found = (self._blocks.get(id(part)) for part in plain_parts(tensor))
        return any(block is not None and not self._covered(block) for block in found)

    def _look(self, tensor: torch.Tensor, frame: FrameType | None) -> None:
        if frame is None:
            return
        reader = id(tensor), frame.f_code, frame.f_lasti
        if reader not in self._known:
            self._known.add(reader)
            self._found()
