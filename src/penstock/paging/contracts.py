# SPDX-License-Identifier: Apache-2.0
"""What an attached model asks of the parts that page its blocks."""

from __future__ import annotations

from typing import Protocol

from penstock.native import ManagedSet, Pager

# What pages the blocks; a managed set, if its figures have the names of a pager's.
Memory = Pager | ManagedSet


class Hooks(Protocol):
    """What tells it which blocks are about to be used."""

    def arm(self) -> None:
        """Declare uses from now on."""

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
