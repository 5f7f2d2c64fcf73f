# SPDX-License-Identifier: Apache-2.0
"""Weights and state that code outside the model touches: averages, logs, checks, changes by hand.

Between steps they lie wherever the plan has left them. While this mode is on, each operator that
touches one has it brought in, as written, and gone again after it. It is off while the model
runs: there modules' hooks do that, at no cost for each operator. So it is in backward, once it has
found nothing there in the first passes, or updates have begun there, unless the loss has read some:
a dispatch of Python's for each operator takes the host as long again as the operator does.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Container, Iterable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from ..modes import PassMode, leave_over, run
from ..watch import block_of
from ..wrappers import plain_leaves
from .holders import Holders
from .kept import each, length
from .loop import PLAIN_STEPS
from .replaced import Replacements
from .threads import calling

_ALL: weakref.WeakSet[Between] = weakref.WeakSet()


class Part(Protocol):
    """A block, or a piece of the optimizer's state."""

    address: int

    @property
    def nbytes(self) -> int:
        """Bytes."""

    @property
    def name(self) -> str:
        """For reports."""


class Between(PassMode):
    """The mode; on and off as often as wanted.

    Attributes:
        touched: Called with the addresses of those that an operator is about to touch.
        holders: Of weights, as backward begins.
        needed: The next backward is not run without it.
        rests: Whether backward is run without it, unless the loss has read some.
        whole: Addresses of weights with which backward should be through.
        late: Called with one of these that an operator is about to touch nevertheless.
        failed: Called with the error that ends a backward, of this model or another.

    Args:
        parts: Those that page, by the address of their device bytes; more may come.
        covered: Whether a running use covers it.
        touching: Around work that reads and writes such.
    """

    def __init__(
        self,
        parts: dict[int, Part],
        covered: Callable[[Part], bool],
        touching: Callable[[list[Part]], AbstractContextManager[None]],
    ) -> None:
        super().__init__()
        self.parts = parts
        self._covered = covered
        self._touching = touching
        self.holders = Holders([])
        self.needed = False
        self.touched: Callable[[Iterable[int]], None] = lambda addresses: None
        self.whole: Container[int] = ()
        self.late: Callable[[int], None] = lambda address: None
        self.failed: Callable[[Exception], None] = lambda error: None
        self._in_backward = False
        self.rests = False
        self._quiet = 0  # passes of backward that have found nothing, while all have
        self._pending = self._in_loss = False  # behind a forward; whether its loss has read some
        self._uninstall: Callable[[], object] | None = None
        _ALL.add(self)

    def start(self, *, pending: bool | None = None) -> None:
        """On, in this thread.

        Args:
            pending: Whether a forward has run that backward and a step are to follow; None where
                that is as it was.
        """
        if pending is not None:
            self._pending, self._in_loss = pending, pending and self._in_loss
            self.needed &= pending
        leave_over()
        if self._uninstall is None and not self.over:  # not before: attaching may fail
            remove = REPLACED.install(), PICKLED.install()
            self._uninstall = weakref.finalize(self, lambda: [each() for each in remove])
        if not self.is_on() and not self.over:
            self.__enter__()

    def stop(self) -> None:
        """Off, in this thread."""
        if self.take_out():
            leave_over()

    def end(self) -> None:
        """Off for good."""
        self.stop()
        self.parts = {}
        self.over = True
        self.failed = lambda error: None
        if self._uninstall is not None:
            self._uninstall()

    def may_rest(self) -> bool:
        """Whether the backward that begins is run without it."""
        needed = self.holders.grown() or self.needed or self._in_loss
        return self.rests and not needed

    def wake(self) -> None:
        """Backward, which has begun without it, reads weights outside the modules after all."""
        self._keep_on()
        if not self.is_on():
            self.__enter__()  # PyTorch leaves it with the node that runs

    def _keep_on(self) -> None:
        self.rests, self._quiet = False, -sys.maxsize

    def watch(self, torchs: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A backward with it on; whether it finds something there."""
        if self._in_backward:  # by a recomputation's own
            return torchs(*args, **kwargs)
        self._in_backward = True
        try:
            return torchs(*args, **kwargs)
        finally:
            self._in_backward = False
            self._quiet += 1
            self.rests |= self._quiet == PLAIN_STEPS

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found: dict[int, Part] = {}
        if not func.is_view:
            for tensor in plain_leaves((args, kwargs)):
                part = block_of(tensor, self.parts)
                if part is not None and not self._covered(part):
                    found[part.address] = part
        if not found:
            return run(func, args, kwargs)
        if self._in_backward and not self._in_loss:
            self._keep_on()
        self._in_loss |= self._pending and torch.is_grad_enabled()
        self.touched(found)
        if min(len(found), length(args)) > 1 and func._schema.name.startswith("aten::_foreach_"):
            with self:  # one by one: together they might not fit
                return each(func, args, kwargs)
        with self._touching(list(found.values())):
            return run(func, args, kwargs)


def _watched(torchs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(torchs)
    def run(*args: Any, **kwargs: Any) -> Any:
        off = []
        on = [each for each in _get_current_dispatch_mode_stack() if isinstance(each, Between)]
        while on and on[-1].may_rest():  # one for each attachment
            off.append(on.pop())
            off[-1].stop()
        try:
            with calling():
                if on:
                    return on[-1].watch(torchs, args, kwargs)
                return torchs(*args, **kwargs)
        except RuntimeError as error:
            for each in list(_ALL):
                each.failed(error)
            raise
        finally:
            while off:
                off.pop().start()

    return run


def _copied(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """Pickling reads a CPU tensor by no operator, and so one of the emulated GPU's."""

    @wraps(torchs)
    def reduce(tensor: torch.Tensor, protocol: Any) -> Any:
        if tensor.is_cpu and any(block_of(tensor, each.parts) for each in list(_ALL)):
            copy = tensor.detach().clone()
            with _disable_current_modes():  # the host's: a pickler keeps it to the end
                tensor = copy.clone().requires_grad_(tensor.requires_grad)
        return torchs(tensor, protocol)

    return reduce


REPLACED = Replacements(
    torch.autograd,
    {"_engine_run_backward": _watched},
    without="backward is watched, operator by operator, in loops that use gradients",
)
PICKLED = Replacements(
    torch.Tensor,
    {"_reduce_ex_internal": _copied},
    without="pickling weights or the optimizer of a model on the emulated GPU fails",
)
