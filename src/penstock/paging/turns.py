# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: passes of several threads through one attached model follow one another.

What is resident, and where a weight lies, is one state for the whole model. A thread that calls the
model waits until the pass of another is over; one that calls a part of it, or reads a weight,
while another's pass is running is refused: that pass might be waiting for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from penstock.errors import UsageError

_POLL_S = 0.1  # how soon a pass is missed that ended without a word


class Turn:
    """The right to run one model.

    Attributes:
        owner: The thread that has it, by get_ident(); 0 where none has.
    """

    def __init__(self) -> None:
        self.owner = 0
        self._frame = 0
        self._over = threading.Condition()

    def take(self, frame: int) -> None:
        """Wait for the turn; `frame` is the id() of the frame that it lasts as long as."""
        me = get_ident()
        with self._over:
            while self.owner not in (0, me) and self._lasts():
                self._over.wait(_POLL_S)
            self.owner, self._frame = me, frame

    @contextmanager
    def held(self, frame: int) -> Iterator[None]:
        """Take the turn for a while, between passes."""
        self.take(frame)
        try:
            yield
        finally:
            self.release()

    def take_or_refuse(self, what: str, frame: int, *, wait: bool = False) -> None:
        """Take the turn unless another thread has it, or when it has done with it.

        Raises:
            UsageError: If one has it and is not to be waited for.
        """
        if wait:
            self.take(frame)
        with self._over:
            if self.owner not in (0, get_ident()) and self._lasts():
                raise UsageError(
                    f"{what} while another thread runs the attached model",
                    remedy="call the attached model itself: such calls take turns",
                )
            self.owner, self._frame = get_ident(), frame

    def is_anothers(self) -> bool:
        """Whether another thread runs the model."""
        return self.owner not in (0, get_ident()) and self._lasts()

    def release(self) -> None:
        """The turn is over, if it is this thread's."""
        with self._over:
            if self.owner == get_ident():
                self.owner = 0
                self._over.notify()

    def _lasts(self) -> bool:
        """Whether the owner is still within it: an interrupt leaves a pass without a hook."""
        frame = sys._current_frames().get(self.owner)
        while frame is not None and id(frame) != self._frame:
            frame = frame.f_back
        return frame is not None
