# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at a chosen place, for tests."""

from __future__ import annotations

from contextlib import contextmanager

import pytest


@contextmanager
def interrupted(pager, call, number):
    """The call of that number, from 0, is interrupted: "begin" when it is done, "end" before."""
    given = getattr(pager, call)
    left = iter(range(number))

    def interrupting(*use):
        if call == "begin":
            given(*use)
        if next(left, None) is None:
            raise KeyboardInterrupt
        if call == "end":
            given(*use)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pager, call, interrupting)
        with pytest.raises(KeyboardInterrupt):
            yield
