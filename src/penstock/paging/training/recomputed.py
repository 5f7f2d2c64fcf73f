# SPDX-License-Identifier: Apache-2.0
"""Units whose forward backward has computed again, and whose own backward has not begun.

What they read stays from the one to the other, which is soon where a region is a layer. A region
of many layers would have them all there at once: beyond a limit those go that were computed first,
which backward needs last. They come back like any other, by the nodes of their outputs.
"""

from __future__ import annotations

from collections.abc import Callable

from .units import Unit


class Recomputed:
    """Them, the oldest first.

    Attributes:
        most: Bytes of theirs that stay.

    Args:
        close: Ends what they stay for.
    """

    def __init__(self, close: Callable[[Unit], None]) -> None:
        self.most = 0
        self._close = close
        self._bytes: dict[Unit, int] = {}
        self._all = 0

    def add(self, unit: Unit) -> None:
        """The unit's forward has been computed again."""
        self.discard(unit)
        self._bytes[unit] = nbytes = sum(block.nbytes for block in unit.blocks)
        self._all += nbytes
        while self._all > self.most and len(self._bytes) > 1:
            oldest = next(iter(self._bytes))
            self.discard(oldest)
            self._close(oldest)

    def discard(self, unit: Unit) -> None:
        """Its backward begins, or its forward does once more."""
        self._all -= self._bytes.pop(unit, 0)
