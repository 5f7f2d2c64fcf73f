# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: passes of several threads through one attached model follow one another.

What is resident, and where a weight lies, is one state for the whole model. A thread that calls the
model waits until the pass of another is over. One that calls a part of it waits for a while, as an
encoder that generate() calls alone does; then it is refused, since that pass might be waiting for
it. One that reads a weight meanwhile is refused at once.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from penstock.errors import UsageError

PATIENCE_S = 10.0  # of a part for another thread's pass
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

    def take(self, frame: int, patience_s: float = math.inf) -> bool:
        """Wait for the turn, so long at the most.

        Args:
            frame: The id() of the frame that it lasts as long as.
            patience_s: Seconds.

        Returns:
            Whether this thread has it.
        """
        me, until = get_ident(), time.monotonic() + patience_s
        with self._over:
            while self.owner not in (0, me) and self._lasts():
                if time.monotonic() > until:
                    return False
                self._over.wait(_POLL_S)
            self.owner, self._frame = me, frame
        return True

    @contextmanager
    def held(self, frame: int) -> Iterator[None]:
        """Take the turn for a while, between passes."""
        self.take(frame)
        try:
            yield
        finally:
            self.release()

    def take_or_refuse(self, what: str, frame: int, *, wait: bool = False) -> None:
        """Take the turn; wait: however long that takes.

        Raises:
            UsageError: If another thread has it, and goes on to have it.
        """
        if not self.take(frame, math.inf if wait else PATIENCE_S):
            raise UsageError(
                f"{what} while another thread runs the attached model",
                remedy="call the attached model itself: such calls take turns",
            )

    def is_anothers(self) -> bool:
        """Whether another thread runs the model."""
        return self.owner not in (0, get_ident()) and self._lasts()

    def refuse_read(self, name: str, *, in_child: bool) -> None:
        """Refuse that this thread reads a tensor of the model, where it may not.

        Raises:
            UsageError: In a child process, or while another thread has the turn.
        """
        if in_child or self.is_anothers():
            raise UsageError(
                f"{name} is read "
                + ("in a child process" if in_child else "while another thread runs the model"),
                remedy="a copy made before, such as of its state_dict()",
            )

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
