# SPDX-License-Identifier: Apache-2.0
"""The uses of one model that are running.

An interrupt (Ctrl-C) may come at any line. So a use is on the list before it has begun, and until
it has ended: whoever finds it there may end it again.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import OutOfMemory, PenstockError, UsageError
from penstock.native import Pager

from .blocks import Block
from .use import Use


class Running(list[tuple[Use, list[int]]]):
    """Uses, innermost last, and their versions when they began.

    Attributes:
        slots: Pages that there was room for when somebody asked; 0 until then.

    Args:
        pager: Where they are declared.
        stream: Gives the raw handle of the stream that kernels go to now.
        end: Ends a use.
        uncovered: Told of the blocks of a read that had to end, where no other use covers them.
    """

    def __init__(
        self,
        pager: Pager,
        stream: Callable[[], int],
        end: Callable[[Use, list[int]], None],
        uncovered: Callable[[Block], None],
    ) -> None:
        self._pager = pager
        self._stream = stream
        self._end = end
        self._uncovered = uncovered
        self.slots = 0

    def begin(self, use: Use) -> None:
        """Begin one; in vain, it is not there. Reads end for it if less room is left than known."""
        try:
            self._begin(use)
        except OutOfMemory:
            known, self.slots = self.slots, 0
            if self.room() >= known:
                raise
            self.release_reads(lambda: not self.fits(use))
            self._begin(use)

    def _begin(self, use: Use) -> None:
        self.append((use, use.versions()))
        try:
            self._pager.begin(use.number, self._stream())
        except PenstockError:
            self.pop()
            raise

    def close(self, at: int = -1) -> None:
        """End one, the last."""
        try:
            self._end(*self[at])
        except UsageError:
            pass  # it has ended, and an interrupt came then
        except Exception:
            del self[at]
            raise
        del self[at]

    def covers(self, block: Block) -> bool:
        """Whether one uses the block."""
        return any(block in use.blocks for use, _ in self)

    def reads(self) -> bool:
        """Whether one is a read."""
        return any(use.is_read for use, _ in self)

    def bytes_read(self) -> int:
        """Bytes of those that are reads."""
        return sum(use.nbytes for use, _ in self if use.is_read)

    def release_reads(self, too_many: Callable[[], bool]) -> None:
        """End the oldest reads for as long."""
        for entry in [entry for entry in self if entry[0].is_read]:
            if not too_many():
                return
            self.close(self.index(entry))
            for block in entry[0].blocks:
                if not self.covers(block):
                    self._uncovered(block)

    def fits(self, use: Use) -> bool:
        """Whether there is room for it beside what is running."""
        pages = frozenset().union(*(each.pages for each, _ in self))
        return len(use.pages | pages) <= self.room()

    def room(self) -> int:
        """Pages that there is room for, tensors permitting, which take some in a pass."""
        self.slots = self.slots or int(self._pager.stats()["slots"])
        return self.slots
