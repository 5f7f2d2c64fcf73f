# SPDX-License-Identifier: Apache-2.0
"""Weights that no use writes: whether somebody has, between passes, without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from penstock.errors import UsageError

from .blocks import Block
from .on_host import OnHost

_UNKNOWN = -1


class Unwritten:
    """The sum of the versions of tensors that are read only, from one pass to the next.

    Args:
        tensors: Gives them, as they are now, each with its block.
        on_host: By how much the versions of those that somebody was given to write have grown; told
            of references: a weak one would keep torch.utils.swap_tensors() from a tensor.
    """

    def __init__(
        self, tensors: Callable[[], Iterable[tuple[Block, torch.Tensor]]], on_host: OnHost
    ) -> None:
        self._tensors = tensors
        self._on_host = on_host
        self._changes = on_host.changes
        self._sum = _UNKNOWN
        self._known: list[torch.Tensor] = []
        self._blocks: list[Block] = []
        self.collect()

    def collect(self) -> None:
        """Which they are is another matter now."""
        for block in self._blocks:
            self._on_host.refer(block, -1)
        pairs = list(self._tensors())
        self._blocks = [block for block, _ in pairs]
        self._known = [tensor for _, tensor in pairs]
        for block in self._blocks:
            self._on_host.refer(block, 1)
        self.forget()

    def forget(self) -> None:
        """Nothing is known until remember()."""
        self._sum = _UNKNOWN

    def remember(self) -> None:
        """A pass is over: from here on nobody writes but those that were given some."""
        self._sum = self._versions() - self._changes()

    def check(self) -> None:
        """What was changed on the device, outside every use, may leave it and be lost.

        Raises:
            UsageError: If something was.
        """
        if self._sum < 0 or self._versions() - self._sum == self._changes():
            return
        raise UsageError(
            "a weight was changed in place through a tensor that was kept from before attach(), "
            "which nobody was told of: the change may be lost",
            remedy="change it by way of its module, such as model.get_parameter(name)",
        )

    def _versions(self) -> int:
        return sum([tensor._version for tensor in self._known])
