# SPDX-License-Identifier: Apache-2.0
"""What kinds of passes come next on a GPU, as far as they come as they did the last time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .share import Share

MOST_PAIRS = 256  # of kinds that are remembered
MOST_IN_TURN = 16  # passes that are looked ahead
# What tells passes of a model apart: the part that is called first, then the shapes of its inputs.
Key = tuple[Hashable, ...]
Kind = tuple["Share | None", Key]
_NONE: Kind = None, (None,)


def _part(kind: Kind) -> tuple[Share | None, Hashable]:
    return kind[0], kind[1][0]


class PassOrder:
    """The passes of all models of a device."""

    def __init__(self) -> None:
        self._latest: tuple[Kind, Kind] = _NONE, _NONE
        self._after: OrderedDict[tuple[Kind, Kind], Kind] = OrderedDict()

    def follows(self, kind: Kind) -> None:
        """A pass begins."""
        self._after.pop(self._latest, None)
        self._after[self._latest] = kind
        if len(self._after) > MOST_PAIRS:
            self._after.popitem(last=False)
        self._latest = self._latest[1], kind

    def coming(self) -> Iterator[Kind]:
        """The passes behind the latest; the last one is of the same part again.

        It ends before that where nobody knows what comes, by the same two before it.
        """
        latest = self._latest
        part = _part(latest[1])
        for _ in range(MOST_IN_TURN):
            kind = self._after.get(latest)
            if kind is None:
                return
            yield kind
            if _part(kind) == part:
                return
            latest = latest[1], kind

    def forget(self, share: Share) -> None:
        """Its model runs no more."""
        for pair, kind in list(self._after.items()):
            if share in (pair[0][0], pair[1][0], kind[0]):
                self._after.pop(pair, None)
        if share in (self._latest[0][0], self._latest[1][0]):
            self._latest = _NONE, _NONE
