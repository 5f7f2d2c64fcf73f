# SPDX-License-Identifier: Apache-2.0
"""Dispatch modes of ours that last as long as a pass, among those of the program.

At the end of a `with` PyTorch leaves whatever mode is on top, which has to be the program's: ours
are entered below those that the program has entered, and taken out from there. That is for the
thread alone that entered them, and not within an inference_mode() that began after one: at its end
PyTorch has operators look for modes again, as they did at its beginning, whether there are any. One
that is over does nothing more until then.

Under inference_mode() an operator that is made of others comes to a mode as a whole, and what it is
made of runs as below a mode: without the dispatch key that has a view of a parameter require
gradients as the parameter does. By that matmul() chooses between two products of other bits, so
that `run` gives it the key back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


@cache
def _made_of_others(func: Any) -> bool:
    """Whether an operator is, and has no kernel of its own for the key of views and changes."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = func.name()
    return has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "ADInplaceOrView")


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator that came to a mode gives, as it would without one."""
    if not torch.is_inference_mode_enabled() or not _made_of_others(func):
        return func(*args, **kwargs)
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set() - _VIEWS
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        return func(*args, **kwargs)


@contextmanager
def out_of_inference() -> Iterator[None]:
    """What is made in here may outlive an inference_mode() that the caller is in."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


class PassMode(TorchDispatchMode):
    """A mode that is entered when a pass begins, and left at its end or later.

    Attributes:
        over: Whether it does nothing more.
    """

    over = False
    supports_higher_order_operators = True
    _under = False  # inference_mode()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code stays compiled: it would run as eager code does, with other bits."""
        return True

    # PyTorch's own also keep flags, for compiled code, which ours ignore: they are put back in the
    # order of a stack, which is not that of ours, and an interrupt may come before the mode is off.

    def __enter__(self) -> Any:
        self._under = torch.is_inference_mode_enabled()
        with _lifted(on_top_is_the_programs):
            _push_mode(self)
        return self

    def __exit__(self, *error: object) -> None:
        _pop_mode()

    def is_on(self) -> bool:
        """Whether this thread has entered it."""
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def take_out(self) -> bool:
        """Leave it, wherever it lies; False where this thread has not entered it."""
        if not self.is_on():
            return False
        with _lifted(lambda: _get_current_dispatch_mode() is not self):
            _pop_mode()
        return True

    def leave(self) -> None:
        """The pass is over; a mode that cannot be left now is left by `leave_over`."""
        self.over = True
        leave_over()


def leave_over() -> None:
    """Leave those modes of this thread's that are over, and can be left here."""
    under = torch.is_inference_mode_enabled()  # they are left where they were entered
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, PassMode) and mode.over and mode._under == under:
            mode.take_out()


@contextmanager
def _lifted(is_above: Callable[[], bool]) -> Iterator[None]:
    """The modes on top are off meanwhile, as long as that holds of the topmost."""
    above = []
    try:
        while is_above():
            above.append(_pop_mode())
        yield
    finally:
        while above:
            _push_mode(above.pop())


def on_top_is_the_programs() -> bool:
    """Whether the mode that was entered last is not one of ours, nor of PyTorch's own insides."""
    mode = _get_current_dispatch_mode()
    return mode is not None and not isinstance(mode, PassMode) and not mode.is_infra_mode()
