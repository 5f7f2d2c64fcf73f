# SPDX-License-Identifier: Apache-2.0
"""Text of others, made fit to be shown.

Names in files, and names of files, may hold what moves a terminal's cursor or cannot be encoded.
Pure, standard library only; nothing of Penstock is below it.
"""

from __future__ import annotations

import re

# Control characters, what turns the direction of writing, and halves of surrogate pairs.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with an escape such as ``\x1b`` for every character that nobody could read."""
    return _UNFIT.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same on one line, with single spaces."""
    return printable(" ".join(text.split()))
