# SPDX-License-Identifier: Apache-2.0
"""What the training loop does between backward and optimizer.step(), and what that permits.

An update in backward spares the room and the traffic of all gradients, and is right only where the
loop does not look at gradients, adds no second backward to them and does step. That is not known
before it was seen: the first steps keep their gradients, and a loop that used them in any way is
taken to do so always.
"""

from __future__ import annotations

PLAIN_STEPS = 8  # a loop that went straight from backward to the step so often goes on like that


class Loop:
    """Follows one training loop.

    Args:
        in_backward: Whether updates are in backward from the beginning; None to find out, False
            for never.

    Attributes:
        in_backward: Whether they are now.
        accumulating: Whether the user has said that another backward follows.
        checked: Whether that no scaler is in use is known: by what was seen, or looked for.
    """

    def __init__(self, in_backward: bool | None) -> None:
        self.in_backward = bool(in_backward)
        self.accumulating = False
        self.checked = not in_backward
        self._keeps = in_backward is False
        self._plain = 0
        self._backwards = 0  # since the last step, of which each must be followed by one

    @property
    def keeps(self) -> bool:
        """Whether gradients outlive the backward that runs now."""
        return self.accumulating or not self.in_backward

    @property
    def stepless(self) -> bool:
        """Whether a backward is over, and no step has followed it."""
        return self._backwards > 0

    def gradient_touched(self) -> None:
        """The loop has read or written a gradient."""
        self._keeps = True

    def weights_touched(self) -> None:
        """The loop uses weights or state, by a pass too: behind a backward those of before it."""
        if self._backwards:
            self._keeps = True

    def backward_ended(self) -> None:
        """A backward pass is over."""
        if not self.accumulating:
            self._backwards += 1
            if self._backwards > 1:
                self._keeps = True

    def stepped(self) -> None:
        """The optimizer has stepped."""
        self._plain += self._backwards == 1
        self._backwards = 0

    def failed(self) -> None:
        """A backward broke off; the next gradients are those of another step."""
        self._backwards = 0

    def may_turn(self) -> bool:
        """Whether updates may be in backward from the next one on, if no gradient waits."""
        return not self.in_backward and not self._keeps and self._plain >= PLAIN_STEPS
