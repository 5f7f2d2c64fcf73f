# SPDX-License-Identifier: Apache-2.0
"""Module hooks that tell the pager what is about to be used.

A module that owns paged blocks is a use: begin before its forward, end after it, also when it
raises. The first pass watches every operator too (see discovery.py), and what a module was seen to
touch beyond its own becomes part of its use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from penstock.native import Pager

from .discovery import AccessWatch
from .layout import Block, Home


class UseHooks:
    """Declares the uses of one attached model.

    Args:
        model: The root.
        blocks: Its blocks, placed.
        pager: Where uses are declared.
        stream: Gives the raw handle of the stream that kernels go to now.
        always_watch: Check every operator in every pass, not only in the first.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: list[Block],
        pager: Pager,
        stream: Callable[[], int],
        *,
        always_watch: bool,
    ) -> None:
        self._model = model
        self._pager = pager
        self._stream = stream
        self._always_watch = always_watch
        self._own: dict[nn.Module, list[Block]] = {}
        for block in blocks:
            for slot in block.slots:
                if block.home is Home.PAGED and block not in self._own.setdefault(slot.module, []):
                    self._own[slot.module].append(block)
        self._own = {module: own for module, own in self._own.items() if own}
        self._blocks: list[list[Block]] = []  # by use number
        self.uses = {module: self._define(own) for module, own in self._own.items()}
        self._handles: list[Any] = []
        self._watch_handles: list[Any] = []
        self._running: list[tuple[nn.Module, int]] = []
        self._stack: list[nn.Module] = []
        self._by_pointer = {block.address: block for block in blocks if block.home is Home.PAGED}
        self._watch: AccessWatch | None = None
        self._in_pass = False
        self._found: list[tuple[nn.Module, Block]] = []

    def _define(self, blocks: list[Block]) -> int:
        self._blocks.append(list(blocks))
        return self._pager.define_use(
            [
                (block.address, block.nbytes, any(not slot.is_parameter for slot in block.slots))
                for block in blocks
            ]
        )

    @property
    def armed(self) -> bool:
        """Whether uses are being declared."""
        return bool(self._handles)

    @property
    def watching(self) -> bool:
        """Whether every operator is being checked."""
        return self._watch is not None

    def name_of(self, use: int) -> str:
        """The module path behind a use number, for reports."""
        modules = {number: module for module, number in self.uses.items()}
        wanted = modules.get(use)
        names = {module: name for name, module in self._model.named_modules()}
        return names.get(wanted, "") if wanted is not None else ""

    # ---- Life ------------------------------------------------------------------------------

    def arm(self) -> None:
        """Put the hooks on every module that owns paged blocks."""
        if self._handles:
            return
        for module, use in self.uses.items():
            self._handles += [
                module.register_forward_pre_hook(self._begin_hook(use)),
                module.register_forward_hook(self._end_hook(use), always_call=True),
            ]

    def disarm(self) -> None:
        """Take them off: nothing is declared, which is right only while everything stays."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def start_watch(self) -> None:
        """From the next pass on, check what every operator touches."""
        self._watch = AccessWatch(self._by_pointer, self._covers, self._missed)
        for module in self._model.modules():
            self._watch_handles += [
                module.register_forward_pre_hook(self._enter, prepend=True),
                module.register_forward_hook(self._leave, always_call=True),
            ]

    def remove(self) -> None:
        """Take every hook off, also in the middle of a pass that was interrupted."""
        self._abandon()
        self.disarm()
        self._remove_watch()

    def pass_begins(self) -> None:
        """The root's forward starts."""
        self._abandon()
        if self._watch is not None:
            self._watch.__enter__()
            self._in_pass = True

    def pass_ends(self) -> None:
        """The root's forward is over, with or without an error."""
        self._abandon()
        if self._watch is not None:
            self._learn()
            if not self._always_watch:
                self._remove_watch()

    def _abandon(self) -> None:
        """End what still runs: after an error in a hook, or an interrupt, for which none runs."""
        while self._running:
            self._pager.end(self._running.pop()[1], self._stream())
        self._stack.clear()
        if self._watch is not None and self._in_pass:
            self._watch.__exit__(None, None, None)
        self._in_pass = False

    def _remove_watch(self) -> None:
        for handle in self._watch_handles:
            handle.remove()
        self._watch_handles.clear()
        self._watch = None

    # ---- Hooks -----------------------------------------------------------------------------

    def _begin_hook(self, use: int) -> Callable[..., None]:
        begin, stream, running = self._pager.begin, self._stream, self._running

        def hook(module: nn.Module, args: Any) -> None:
            begin(use, stream())
            running.append((module, use))

        return hook

    def _end_hook(self, use: int) -> Callable[..., None]:
        end, stream, running = self._pager.end, self._stream, self._running

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            # Whatever was found missing inside this module ends with it.
            while running:
                last = running.pop()[1]
                end(last, stream())
                if last == use:
                    return

        return hook

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._stack.append(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        own = self.uses.get(module)
        while self._running and self._running[-1][0] is module and self._running[-1][1] != own:
            self._pager.end(self._running.pop()[1], self._stream())

    # ---- Discovery -------------------------------------------------------------------------

    def _covers(self, block: Block) -> bool:
        return any(block in self._blocks[use] for _, use in self._running)

    def _missed(self, block: Block) -> None:
        module = self._stack[-1] if self._stack else self._model
        use = self._define([block])
        self._pager.begin(use, self._stream())
        self._running.append((module, use))
        self._found.append((module, block))

    def _learn(self) -> None:
        """What a module was seen to touch belongs to its use from now on."""
        if not self._found:
            return
        armed = bool(self._handles)
        self.disarm()
        for module, block in self._found:
            own = self._own.setdefault(module, [])
            if block not in own:
                own.append(block)
        for module in {module for module, _ in self._found}:
            self.uses[module] = self._define(self._own[module])
        self._found.clear()
        if armed:
            self.arm()
