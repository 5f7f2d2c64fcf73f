# SPDX-License-Identifier: Apache-2.0
"""Dispatch modes of ours that last as long as a pass, among those of the program.

A thread's modes are left in the order opposite to that in which they were entered, and by that
thread alone. One that is over while another lies on top of it does nothing more, and is left with
the first that can be.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode


class PassMode(TorchDispatchMode):
    """A mode that is entered when a pass begins, and left at its end or later.

    Attributes:
        over: Whether it does nothing more.
    """

    over = False

    def leave(self) -> None:
        """The pass is over; a mode that cannot be left now is left by `leave_over`."""
        self.over = True
        leave_over()


def leave_over() -> None:
    """Leave those modes that are over and on top of this thread's."""
    mode = _get_current_dispatch_mode()
    while isinstance(mode, PassMode) and mode.over:
        mode.__exit__(None, None, None)
        mode = _get_current_dispatch_mode()


def on_top_is_the_programs() -> bool:
    """Whether the mode that was entered last is not one of ours."""
    mode = _get_current_dispatch_mode()
    return mode is not None and not isinstance(mode, PassMode)
