# SPDX-License-Identifier: Apache-2.0
"""The uses of one model that are running.

An interrupt (Ctrl-C) may come at any line. So a use is on the list before it has begun, and until
it has ended: whoever finds it there may end it again.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import PenstockError, UsageError
from penstock.native import Pager

from .blocks import Block
from .use import Use


class Running(list[tuple[Use, list[int]]]):
    """Uses, innermost last, and their versions when they began.

    Args:
        pager: Where they are declared.
        stream: Gives the raw handle of the stream that kernels go to now.
        end: Ends a use.
    """

    def __init__(
        self, pager: Pager, stream: Callable[[], int], end: Callable[[Use, list[int]], None]
    ) -> None:
        self._pager = pager
        self._stream = stream
        self._end = end

    def begin(self, use: Use) -> None:
        """Begin one; in vain, it is not there."""
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

    def pages(self) -> frozenset[int]:
        """The addresses of their pages."""
        return frozenset().union(*(use.pages for use, _ in self))
