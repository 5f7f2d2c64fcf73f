# SPDX-License-Identifier: Apache-2.0
"""Where in the program an allocation was made: Python frames, taken fast and told later.

A stack is kept once, however often it comes, as pairs of code object and instruction; lines and
names are looked up only when somebody asks. So memory grows with the number of different places
that allocate, not with the number of events.

Thread rule: any thread that holds the interpreter lock.
"""

from __future__ import annotations

import itertools
import sys
from types import CodeType
from typing import Any

MOST_FRAMES = 64  # the innermost; deeper recursion adds nothing to read


class FrameTable:
    """Stacks by number; 0 is the empty one.

    Args:
        skip: Frames at the inner end that belong to the recording itself.
    """

    def __init__(self, skip: int = 2) -> None:
        self._skip = skip
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._stacks: dict[int, tuple[Any, ...]] = {}
        self._next = itertools.count(1)

    def take(self) -> int:
        """The number of the calling thread's stack; threads without Python frames have none."""
        try:
            frame = sys._getframe(self._skip)
        except ValueError:
            return 0
        parts: list[Any] = []
        for _ in range(MOST_FRAMES):
            parts += (frame.f_code, frame.f_lasti)
            frame = frame.f_back  # type: ignore[assignment]
            if frame is None:
                break
        stack = tuple(parts)
        number = self._numbers.get(stack)
        if number is None:
            number = next(self._next)
            self._stacks[number] = stack
            self._numbers[stack] = number
        return number

    def frames(self, number: int) -> list[dict[str, Any]]:
        """The frames of a stack, innermost first, as torch's snapshots have them."""
        stack = self._stacks.get(number, ())
        return [
            {"name": code.co_name, "filename": code.co_filename, "line": _line(code, instruction)}
            for code, instruction in zip(stack[::2], stack[1::2], strict=True)
        ]


def _line(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
