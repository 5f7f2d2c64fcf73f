# SPDX-License-Identifier: Apache-2.0
"""What an attached model asks of the parts that page its blocks, and they of it."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from penstock.errors import OutOfMemory


class Memory(Protocol):
    """What pages the blocks: native.Pager, or what has the same figures."""

    def iteration(self, kind: int = 0, work: int = 0) -> None:
        """The uses since the last call were one iteration; one of this kind begins, that long."""

    def smallest(self) -> int:
        """The smallest budget, in bytes, that the declared uses can run in."""

    def resize(self, budget: int) -> None:
        """Change the budget (bytes)."""

    def stats(self) -> dict[str, Any]:
        """Counters and sizes, under the names of Pager.stats()."""

    def close(self) -> None:
        """Wait for its work and free all it holds."""

    def abandon(self) -> None:
        """In a child process: it is the parent's, and is not touched again."""


class Hooks(Protocol):
    """What tells it which blocks are about to be used."""

    @property
    def armed(self) -> bool:
        """Whether uses are being declared."""

    def arm(self) -> None:
        """Declare uses from now on."""

    def disarm(self) -> None:
        """Declare none any more."""

    def start_watch(self) -> None:
        """Check what every operator touches, from the next pass on."""

    def pass_begins(self) -> None:
        """The root's forward starts."""

    def pass_ends(self) -> None:
        """The root's forward is over, with or without an error."""

    def in_forward(self) -> bool:
        """Whether the model or a part of it is running, and may replace what it has."""

    def remove(self) -> None:
        """Take every hook off."""

    def name_of(self, use: int) -> str:
        """The module path behind a use number."""


class Passes(Protocol):
    """What is told of passes through a part of the model.

    Attributes:
        frees_casts: Whether the copies that autocast keeps of weights, until its context ends, are
            to go with each module: there is no room for those of all.
    """

    frees_casts: bool

    def part_begins(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The module of this path is called from outside every pass."""

    def part_ends(self) -> None:
        """It has returned, or raised."""

    def out_of_memory(self, error: OutOfMemory) -> OutOfMemory:
        """The error of a use that found no room, with who has it."""
