# SPDX-License-Identifier: Apache-2.0
"""What the values of flags are held against, where a verb has a request of its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import UsageError


def check_known(flag: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that is none of the known ones.

    Raises:
        UsageError: If it is not.
    """
    if value not in known:
        raise UsageError(f"{flag} '{value}' is unknown", remedy=", ".join(known))


def sequence_length(asked: int | None, default: int, positions: int, model: str) -> int:
    """Tokens of a sequence: those asked for, or a default, as far as the model has positions.

    Raises:
        UsageError: If more were asked for.
    """
    if asked is None:
        return min(default, positions)
    if asked > positions:
        raise UsageError(
            f"--seq-len {asked} is more than the {positions} positions of {model}",
            remedy=f"--seq-len {positions} or less",
        )
    return asked


def check_least(*rows: tuple[str, int | None, int]) -> None:
    """Refuse counts that are too small.

    Args:
        rows: (flag, value, the least that makes sense); a value of None was not given.

    Raises:
        UsageError: For the first that is below.
    """
    for flag, value, least in rows:
        if value is not None and value < least:
            raise UsageError(f"{flag} {value} makes no sense", remedy=f"{least} or more")
