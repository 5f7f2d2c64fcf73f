# SPDX-License-Identifier: Apache-2.0
"""Weights that no use writes: whether somebody has, between passes, without a word."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch

from penstock.errors import UsageError

_UNKNOWN = -1


class Unwritten:
    """The sum of the versions of tensors that are read only, from one pass to the next.

    Args:
        tensors: Gives them, as they are now.
        changes: By how much the versions of those that somebody was given to write have grown.
    """

    def __init__(
        self, tensors: Callable[[], Iterable[torch.Tensor]], changes: Callable[[], int]
    ) -> None:
        self._tensors = tensors
        self._changes = changes
        self._sum = _UNKNOWN
        self.collect()

    def collect(self) -> None:
        """Which they are is another matter now."""
        self._known = [weakref.ref(tensor) for tensor in self._tensors()]
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
        return sum([tensor._version for get in self._known if (tensor := get()) is not None])
