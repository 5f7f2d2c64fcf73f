# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is to train: passes and steps of several threads must not overlap.

What is resident, which graph waits for its backward and what has been updated is one state for the
whole model. Threads may take turns; one that begins while another is in the middle is refused.

Thread rule: any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from penstock.errors import UsageError

from ..turns import Turn
from .nodes import in_backward


class _Call:
    """A backward pass, of any model, in the thread that called for it."""

    def __init__(self) -> None:
        self.thread = get_ident()


_CALLS: set[_Call] = set()  # that have not returned


@contextmanager
def calling() -> Iterator[None]:
    """Around a backward pass, in the thread that calls for it."""
    call = _Call()
    _CALLS.add(call)
    try:
        yield
    finally:
        _CALLS.discard(call)


class Threads:
    """Refuses what one thread begins while another runs the same model.

    Args:
        turn: The model's.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._backward: set[_Call] = set()  # one of them is this model's last backward

    def forward_begins(self, frame: int) -> None:
        """The root's forward starts, and lasts as long as the frame with this id().

        Raises:
            UsageError: If another thread is in the middle.
        """
        self._take("the attached model is called", frame)

    def forward_ends(self) -> None:
        """It is over."""
        self._turn.release()

    @contextmanager
    def step(self, frame: int) -> Iterator[None]:
        """Around optimizer.step(), called in the frame with this id().

        Raises:
            UsageError: If another thread is in the middle.
        """
        mine = self._turn.owner == get_ident()
        self._take("optimizer.step() is called", frame)
        try:
            yield
        finally:
            if not mine:
                self._turn.release()

    def backward_begins(self) -> None:
        """Autograd has come to this model, in the thread that called it or in one of its own.

        Raises:
            UsageError: If another thread is in the middle.
        """
        calls = set(_CALLS)
        own = {call for call in calls if call.thread == get_ident()}
        overlaps = own and self._backward & calls - own
        runs = self._turn.is_anothers() and self._turn.owner not in {c.thread for c in calls}
        if overlaps or runs:
            raise _refusal("backward begins")
        self._backward = own or calls

    def _take(self, what: str, frame: int) -> None:
        me = get_ident()
        elsewhere = any(call.thread != me for call in self._backward & _CALLS)
        if (elsewhere and not in_backward()) or not self._turn.take(frame, 0):
            raise _refusal(what)


def _refusal(what: str) -> UsageError:
    return UsageError(
        f"{what} while another thread is in a pass, a backward or a step of the attached model",
        remedy="a lock around each step and each evaluation, or an evaluation of a copy",
    )
