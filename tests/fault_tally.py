# SPDX-License-Identifier: Apache-2.0
"""Has calls fail in turn; counts go to the file that PENSTOCK_FAULTS names, for faults.py."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.errors import PenstockError

# Whether nothing is to be left out.
EVERY = "PENSTOCK_EVERY_CALL" in os.environ


def tell_faults(engine: str, what: str, count: int) -> None:
    """Add a count; without such a file, nothing."""
    path = os.environ.get("PENSTOCK_FAULTS")
    if path is not None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{engine}\t{what}\t{count}\n")


def each_call(calls: int, *, few: int = 0) -> list[int]:
    """What `fail_at_call` is in turn: each call that fails once, and then that and all after it.

    Args:
        calls: How many there are.
        few: So many of them, unless none is to be left out; 0: all, and of those for good a few.
    """
    every = 1 if EVERY or not few else max(1, calls // few)
    for_good = 1 if EVERY else max(1, calls // (few or 20))
    return [*range(1, calls + 1, every), *range(-1, -calls - 1, -for_good)]


def fail_in_turn(
    engine: str, run: Callable[[int], object], calls: int, *, few: int = 0, says: str = ""
) -> int:
    """Call `run` with each of each_call(), and add the counts.

    Returns:
        How often it raised an error of Penstock's, which has to have a text, with `says` in it.
    """
    made, failed = each_call(calls, few=few), 0
    for call in made:
        try:
            run(call)
        except PenstockError as error:
            failed += 1
            assert str(error)
            assert says in str(error)
    tell_faults(engine, "calls, once", sum(call > 0 for call in made))
    tell_faults(engine, "calls, for good", sum(call < 0 for call in made))
    return failed
