# SPDX-License-Identifier: Apache-2.0
"""The errors Penstock raises on purpose: each says what happened and what to try.

Invariant: ``str(error)`` is one line, "what, with numbers; try: remedy", that can be printed as it
is, whatever the names in it hold; ``exit_code`` is what a command ends with. Libraries raise, only
the command line exits. Instances pickle and are never changed after they were raised.
"""

from __future__ import annotations

from .text import one_line

_PYTORCHS = "CUDA out of memory. "  # how its own error begins


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose.

    Args:
        what: What happened, with the numbers that matter.
        remedy: One thing to try, as a command or a short sentence; None where there is none.

    Attributes:
        what: The first argument, on one line.
        remedy: The second argument, on one line, or None.
        exit_code: What a command that ends with this error returns to the shell.
    """

    exit_code: int = 1

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = one_line(str(what))
        self.remedy = None if remedy is None else one_line(str(remedy))

    def __str__(self) -> str:
        return self.what if self.remedy is None else f"{self.what}; try: {self.remedy}"


class FailedError(PenstockError):
    """The work failed: a file that is missing or not valid, a check that does not hold."""

    exit_code = 1


class UsageError(PenstockError, ValueError):
    """The request makes no sense: an unknown model, option or dtype, an impossible size."""

    exit_code = 2


class EnvironmentProblem(PenstockError):
    """The machine lacks something: no GPU where one was asked for, no driver, no extra."""

    exit_code = 3


class OutOfMemory(PenstockError, MemoryError, RuntimeError):
    """The budget or the host cannot hold what has to be held at one time.

    A RuntimeError whose one argument says so in PyTorch's words: what looks for a batch that fits
    (accelerate, transformers, Lightning) knows it by these.

    Args:
        what: What did not fit, with numbers.
        remedy: The smallest change that fits, where it is known.
        needed_bytes: The smallest number of bytes that would do, where it is known.
        budget_bytes: The bytes that were there, where they are known.
    """

    exit_code = 4

    def __init__(
        self,
        what: str,
        *,
        remedy: str | None = None,
        needed_bytes: int | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.args = (_PYTORCHS + self.what.removeprefix(_PYTORCHS),)
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
