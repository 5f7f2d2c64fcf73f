# SPDX-License-Identifier: Apache-2.0
"""A handle of the library, freed once."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p
from typing import Any, ClassVar, TypeVar

from penstock.errors import UsageError

from .api import as_dict, new
from .library import check, library

_HandleT = TypeVar("_HandleT", bound="Handle")


class Handle:
    """What the library gave out; a subclass opens it and says how its functions are called."""

    _prefix: ClassVar[str]
    _freed_by: ClassVar[str] = "destroy"
    _gone: ClassVar[str]  # what is said of one that was closed

    def __init__(self) -> None:
        self._lib = library()
        self._handle: c_void_p | None = None

    def _open(self, call: Callable[..., int], *arguments: Any) -> None:
        handle = c_void_p()
        check(call(*arguments, handle))
        self._handle = handle

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._lib, f"{self._prefix}_{name}")
        return function

    @property
    def handle(self) -> c_void_p:
        """The library's pointer; refuses after close()."""
        if self._handle is None:
            raise UsageError(self._gone)
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether it has been freed."""
        return self._handle is None

    def abandon(self) -> None:
        """In a child process: it is the parent's, and is not touched again."""
        self._handle = None

    def close(self) -> None:
        """Free it, once nothing uses it any more. Harmless when repeated."""
        if self._handle is not None:
            self._function(self._freed_by)(self._handle)
            self._handle = None

    def __enter__(self: _HandleT) -> _HandleT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Paging(Handle):
    """A handle that keeps a budget by moving memory."""

    _stats: ClassVar[str]  # the struct of its statistics

    def resize(self, budget: int) -> None:
        """Change the budget (bytes)."""
        check(self._function("resize")(self.handle, budget))

    def smallest(self) -> int:
        """The smallest budget, in bytes, for what was declared and seen so far."""
        return int(self._function("smallest")(self.handle))

    def stats(self) -> dict[str, Any]:
        """Counters and sizes; see the struct of statistics in penstock.h."""
        stats = new(self._stats)
        check(self._function("get_stats")(self.handle, stats))
        return as_dict(stats)
