# SPDX-License-Identifier: Apache-2.0
"""What torch.utils.checkpoint computes again in backward saves tensors, which leave like others.

A region that is not reentrant is computed again under hooks of torch's own, which keep every tensor
until backward asks for it: hooks derived from them keep a stand-in for each that may leave. A
reentrant region is computed again as any forward is, and saves under hooks put around it.

Where one of the names replaced here is missing, what that way of recomputing saves stays on the
device.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.utils import checkpoint

from .replaced import Replacements


class Pages(Protocol):
    """Lets what a recomputation saves leave, and brings it back."""

    def pack_again(self, tensor: torch.Tensor) -> Any:
        """What is kept of a tensor that is saved: a StandIn, or the tensor itself if it stays."""

    def recomputing(self, *, push: bool) -> AbstractContextManager[None]:
        """Around a recomputation; with `push`, tensors saved there are packed by hooks of ours."""


class StandIn:
    """What a checkpoint keeps of a tensor that may leave: what it compares, and how to get it.

    Attributes:
        get: Brings the tensor back.
    """

    __slots__ = ("__weakref__", "device", "dtype", "get", "shape")
    requires_grad = False

    def __init__(self, tensor: torch.Tensor, get: Callable[[], torch.Tensor]) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.get = get


def _given(kept: Any) -> Any:
    return kept.get() if isinstance(kept, StandIn) else kept


def _after(first: Callable[[Any], Any], then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: then(first(value))


class _Here(threading.local):
    """Whose forward, or recomputation, this thread runs."""

    pages: Pages | None = None


_here = _Here()
_pages_of: weakref.WeakKeyDictionary[Any, Pages] = weakref.WeakKeyDictionary()  # by frame


def enter(pages: Pages | None) -> Pages | None:
    """Regions that this thread runs from here on are these pages'; whose they were before."""
    before, _here.pages = _here.pages, pages
    return before


# ---- Not reentrant -------------------------------------------------------------------------------


def _region(torchs: Any) -> Any:
    class Region(torchs):  # type: ignore[misc]
        """Around a region's forward; what it unpacks may be a stand-in."""

        pack_hook: Callable[[Any], Any]
        unpack_hook: Callable[[Any], Any]

        def __init__(self, frame: Any, *more: Any) -> None:
            super().__init__(frame, *more)
            if _here.pages is not None:
                _pages_of[frame] = _here.pages
                self.unpack_hook = _after(self.unpack_hook, _given)

    return Region


def _again(torchs: Any) -> Any:
    class Again(torchs):  # type: ignore[misc]
        """Around a region's recomputation; what it packs may leave."""

        pack_hook: Callable[[Any], Any]
        unpack_hook: Callable[[Any], Any]

        def __init__(self, frame: Any, *more: Any) -> None:
            super().__init__(frame, *more)
            pages = _pages_of.get(frame())
            self._scope: AbstractContextManager[None] | None = None
            if pages is not None:
                self.pack_hook = _after(pages.pack_again, self.pack_hook)
                self.unpack_hook = _given
                self._scope = pages.recomputing(push=False)

        def __enter__(self) -> None:
            if self._scope is not None:
                self._scope.__enter__()
            super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            if self._scope is not None:
                self._scope.__exit__(None, None, None)

    return Again


# ---- Reentrant -----------------------------------------------------------------------------------


def _forward(torchs: Any) -> Any:
    def forward(ctx: Any, function: Callable[..., Any], *more: Any) -> Any:
        pages = _here.pages
        if pages is None:
            return torchs(ctx, function, *more)

        def run(*inputs: Any) -> Any:
            if not torch.is_grad_enabled():  # in forward, which saves nothing
                return function(*inputs)
            with pages.recomputing(push=True):
                return function(*inputs)

        return torchs(ctx, run, *more)

    return staticmethod(forward)


# ---- In torch's place ----------------------------------------------------------------------------

REPLACED = Replacements(
    checkpoint,
    {
        "_checkpoint_hook": _region,
        "_recomputation_hook": _again,
        "CheckpointFunction.forward": _forward,
    },
    without="what it computes again stays on the device",
    base=torch.autograd.graph.saved_tensors_hooks,
)
