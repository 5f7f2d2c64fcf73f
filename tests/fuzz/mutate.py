# SPDX-License-Identifier: Apache-2.0
"""Changing inputs: bytes as they lie in a file, and documents as they are meant.

Everything follows from the generator that is handed in, so that a finding is found again.
"""

from __future__ import annotations

import copy
import random
from typing import Any

# Numbers at which fields of files end, and texts that mean something to a terminal or a page.
NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**30)
REALS = (0.5, -0.5, 5e-324, 1e-310, 1e17 + 16, 9.2e18, 1e308, float("inf"), float("nan"))
TEXTS = (
    "",
    "\ud800",
    "\x1b]0;x\x07",
    "\x9b2J",
    "\u202e",
    "</script><b>",
    "a" * 5000,
    "100%",
    "\xe9",
)
MOST_TIMES = 3000  # that changes may repeat a value: more is a file of gigabytes
VALUES = (*NUMBERS, *REALS, *TEXTS, None, True, False, [], {}, [None], [[]], {"": {}})


def mutated(content: bytes, draw: random.Random) -> bytes:
    """`content` with one change or several."""
    data = bytearray(content or b"\0")
    for _ in range(draw.choice((1, 1, 1, 2, 4, 12))):
        at = draw.randrange(len(data) or 1)
        kind = draw.randrange(7)
        if kind == 0:
            data[at : at + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            data[at : at + 1] = bytes([(data[at] if data else 0) ^ 1 << draw.randrange(8)])
        elif kind == 2:
            del data[at : at + draw.randrange(1, 40)]
        elif kind == 3:
            data[at:at] = draw.randbytes(draw.randrange(1, 12))
        elif kind == 4:
            del data[at:]
        elif kind == 5:  # a number of the file's
            width = draw.choice((2, 4, 8))
            number = draw.choice(NUMBERS) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, draw.choice(("little", "big")))
        else:  # a piece of it somewhere else
            begin = draw.randrange(len(data) or 1)
            data[at:at] = data[begin : begin + draw.randrange(1, 64)]
    return bytes(data)


def altered(document: Any, draw: random.Random) -> Any:
    """A copy of plain data with some of its values replaced, left out, or in many places."""
    changed = copy.deepcopy(document)
    times = 1  # that a value may stand for another by now
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        place = _place(changed, draw)
        if place is None:
            continue
        holder, key = place
        kind = draw.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind in (1, 2):
            count = draw.choice((2, 10, 300))
            if times * count > MOST_TIMES:
                continue
            times *= count
            if kind == 1 and isinstance(holder, list):
                holder[:] = holder * count
            else:
                holder[key] = [holder[key]] * count
        else:
            holder[key] = copy.deepcopy(draw.choice(VALUES))
    return changed


def _place(document: Any, draw: random.Random) -> tuple[Any, Any] | None:
    """Somewhere in a document: what holds a value, and where in it."""
    found = None
    node = document
    while isinstance(node, (dict, list)) and node:
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        found = (node, key)
        if draw.random() < 0.25:
            break
        node = node[key]
    return found
