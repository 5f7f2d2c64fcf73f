# SPDX-License-Identifier: Apache-2.0
"""Finds accesses that module ownership does not tell.

A module may read a parameter that another module owns (a functional call on `other.weight`, as
nn.MultiheadAttention does with its output projection). During the first pass of an attached model
every operator's tensors are compared with the blocks; an access to a block that no running use
covers is brought in on the spot, and added to the use of the innermost running module, so that
later passes declare it. A dispatch mode costs 2 to 6 us an operator, which is why it is for the
first pass only, unless safety is "strict".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .layout import Block


class AccessWatch(TorchDispatchMode):
    """Calls `missed(block)` before an operator that reads or writes a block not covered.

    Args:
        blocks: Paged blocks by the address of their device bytes.
        covered: Whether a running use covers the block.
        missed: Brings it in; called before the operator runs.
    """

    def __init__(
        self,
        blocks: dict[int, Block],
        covered: Callable[[Block], bool],
        missed: Callable[[Block], None],
    ) -> None:
        super().__init__()
        self._blocks = blocks
        self._covered = covered
        self._missed = missed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                block = self._blocks.get(leaf.untyped_storage().data_ptr())
                if block is not None and not self._covered(block):
                    self._missed(block)
        return func(*args, **kwargs)
