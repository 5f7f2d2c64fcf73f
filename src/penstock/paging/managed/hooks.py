# SPDX-License-Identifier: Apache-2.0
"""Module hooks that tell a managed set which groups are about to be used.

Managed memory that is read without having been declared is slow, not fatal, so that nothing need
be watched: what hooks do not see, the driver serves over the link.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import nn

from penstock.errors import PenstockError, UsageError
from penstock.native import ManagedSet

from .groups import Groups


class GroupHooks:
    """Declares the uses of one attached model.

    Args:
        groups: Its groups, and which modules use them.
        managed: Where uses are declared.
        stream: Gives the raw handle of the stream that kernels go to now.
    """

    def __init__(self, groups: Groups, managed: ManagedSet, stream: Callable[[], int]) -> None:
        self._groups = groups
        self._managed = managed
        self._stream = stream
        self._handles: list[Any] = []
        self._running: list[tuple[nn.Module, int]] = []

    @property
    def armed(self) -> bool:
        """Whether uses are being declared."""
        return bool(self._handles)

    def name_of(self, use: int) -> str:
        """The module path behind a group's number."""
        return self._groups.groups[use].name if 0 <= use < len(self._groups.groups) else ""

    def arm(self) -> None:
        """Put the hooks on every module that uses a group."""
        if self._handles:
            return
        for module, needed in self._groups.uses.items():
            self._handles += [
                module.register_forward_pre_hook(self._begin_hook(needed)),
                module.register_forward_hook(self._end, always_call=True),
            ]

    def disarm(self) -> None:
        """Take them off: nothing is declared, which is right only while everything stays."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def remove(self) -> None:
        """Take every hook off, also in the middle of a pass that was interrupted."""
        self._abandon()
        self.disarm()

    def pass_begins(self) -> None:
        """The root's forward starts."""
        self._abandon()

    def pass_ends(self) -> None:
        """The root's forward is over, with or without an error."""
        self._abandon()

    def in_forward(self) -> bool:
        """Never: nothing is replaced."""
        return False

    def _begin_hook(self, needed: list[int]) -> Callable[..., None]:
        begin, stream, running = self._managed.begin, self._stream, self._running

        def hook(module: nn.Module, args: Any) -> None:
            for group in needed:
                running.append((module, group))  # before: an interrupt may come at any line
                try:
                    begin(group, stream())
                except PenstockError:
                    running.pop()
                    raise

        return hook

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        """End the module's uses, and those inside it that an error left behind."""
        while any(user is module for user, _ in self._running):
            self._close()

    def _abandon(self) -> None:
        while self._running:
            self._close()

    def _close(self) -> None:
        """End the last, which is on the list until it has ended."""
        try:
            with suppress(UsageError):  # an interrupt came before it began, or when it had ended
                self._managed.end(self._running[-1][1], self._stream())
        except Exception:
            self._running.pop()
            raise
        self._running.pop()
