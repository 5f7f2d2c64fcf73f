# SPDX-License-Identifier: Apache-2.0
"""What stands in `.grad` between backward and zero_grad(): a tensor that knows its content's place.

Its content is in blocks, which come in for each operator that touches it; or in ordinary memory; or
gone, because the parameter was updated in backward. So whatever a loop does with gradients, such as
clipping, unscaling, accumulating or logging, works on the true ones or is told that they are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_map

from penstock.errors import UsageError

from ..leaves import tree_leaves

_zero = torch.ops.aten.zero_.default
_add = torch.ops.aten.add_.Tensor
_norm = torch.ops.aten.linalg_vector_norm.default
_EACH = ("aten::_foreach_", "aten::_amp_foreach_")


class Place(Protocol):
    """Where content is that comes and goes."""

    def opened(self) -> AbstractContextManager[torch.Tensor]:
        """Around work on it: gives a tensor over device memory that holds it."""


def _of_a_copy(name: str) -> Any:
    def method(gradient: KeptGradient, *args: Any, **more: Any) -> Any:
        return getattr(gradient.clone(), name)(*args, **more)

    return method


class KeptGradient(torch.Tensor):
    """The gradient of one parameter.

    Attributes:
        place: Its content in blocks; None if it is elsewhere.
        plain: Its content in ordinary memory; None if it is elsewhere.
        zeroed: Whether zero_grad(set_to_none=False) was the last to write it.
        used: Whether a step has gone by it since.
        known_norm: Its 2-norm, shape (), if it is known.
        path: Of the parameter, for errors.
    """

    place: Place | None
    plain: torch.Tensor | None
    zeroed: bool
    used: bool
    known_norm: torch.Tensor | None
    path: str
    _touched: Callable[[], None]
    _whole: KeptGradient | None  # what it is a view of
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, like: torch.Tensor, name: str, touched: Callable[[], None]) -> KeptGradient:
        """Without content.

        Args:
            cls: The class.
            like: Gives shape, strides, dtype and device.
            name: Of the parameter, for errors.
            touched: Called when an operator of the loop reads or writes it.
        """
        made: KeptGradient = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        made.place = made.plain = made.known_norm = None
        made.zeroed = made.used = False
        made.path, made._touched, made._whole = name, touched, None
        return made

    @property
    def gone(self) -> bool:
        """Whether there is neither content nor zeros."""
        return self.place is None and self.plain is None and not self.zeroed

    def empty(self) -> None:
        """Its content has been used."""
        self.place = self.plain = self.known_norm = None
        self.zeroed = False

    @contextmanager
    def opened(self) -> Iterator[torch.Tensor]:
        """Around work on its content, which is in device memory meanwhile.

        Raises:
            UsageError: If it is gone.
        """
        if self.place is not None:
            with self.place.opened() as content:
                yield content
            return
        if self.plain is None and self.zeroed:
            empty = torch.empty_strided(
                self.shape, self.stride(), dtype=self.dtype, device=self.device
            )
            self.plain = empty.zero_()
        if self.plain is None:
            raise UsageError(
                f"the gradient of {self.path} is gone: as steps had gone straight from backward "
                "to optimizer.step(), its parameter was updated in backward",
                remedy="attach_training(..., step_in_backward=False), which keeps gradients",
            )
        yield self.plain

    def zero(self) -> torch.Tensor:
        """What zero_() does; without content it takes no memory."""
        if self.place is not None:
            with self.opened() as content:
                content.zero_()
        self.plain, self.known_norm, self.zeroed, self.used = None, None, True, False
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """An ordinary tensor, as nobody would bring a copy's content in."""
        made = memo[id(self)] = self.clone()
        return made

    def _give(self, data: torch.Tensor) -> None:
        self._touched()
        self.place, self.known_norm, self.zeroed = None, None, False
        self.plain = data.clone() if isinstance(data, KeptGradient) else data.detach()

    data = property(torch.Tensor.detach, _give)  # torch's gives the wrapper memory, unseen

    # What reads memory by no operator: printing, pickle, torch.save(), conversions.
    __repr__, __format__ = _of_a_copy("__repr__"), _of_a_copy("__format__")
    __reduce_ex__ = _of_a_copy("__reduce_ex__")
    tolist, numpy = _of_a_copy("tolist"), _of_a_copy("numpy")

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _zero:
            return args[0].zero()
        if func._schema.name.startswith(_EACH) and length(args) > 1:
            return each(func, args, kwargs)
        kept = {id(x): x for x in tree_leaves((args, kwargs)) if isinstance(x, cls)}
        with ExitStack() as stack:
            content = {key: stack.enter_context(x.opened()) for key, x in kept.items()}
            for x in kept.values():
                x._is_touched(func)
            swap = lambda x: content.get(id(x), x)  # noqa: E731
            call = norm if func is _norm and len(args) <= 2 and not kwargs else func
            out = call(*tree_map(swap, args), **tree_map(swap, kwargs))
        owners = {content[key].untyped_storage()._cdata: x for key, x in kept.items()}
        same = {id(content[key]): x for key, x in kept.items()}
        return tree_map(lambda x: same[id(x)] if id(x) in same else _owned(x, owners), out)

    def _is_touched(self, func: Any) -> None:
        if func is not _add or self.used or torch._C._current_graph_task_id() == -1:
            self._touched()  # and not autograd, which adds what another backward has made
        if func._schema.is_mutable:
            whole: KeptGradient | None = self
            while whole is not None:
                whole.known_norm, whole.zeroed = None, False
                whole = whole._whole


def _owned(out: Any, owners: dict[int, KeptGradient]) -> Any:
    """A view of a gradient's content needs what brings that in, as the gradient does."""
    if not isinstance(out, torch.Tensor) or out.layout is not torch.strided:
        return out
    owner = owners.get(out.untyped_storage()._cdata)
    if owner is None:
        return out
    view = KeptGradient(out, owner.path, owner._touched)
    view.place, view._whole = _Part(out, owner), owner
    return view


class _Part:
    """A view of a gradient's content."""

    def __init__(self, view: torch.Tensor, whole: KeptGradient) -> None:
        self._view = view
        self._whole = whole

    @contextmanager
    def opened(self) -> Iterator[torch.Tensor]:
        """Its content is there when the whole is."""
        with self._whole.opened():
            yield self._view


def norm(content: torch.Tensor, order: float = 2.0) -> torch.Tensor:
    """Of a whole gradient, as clip_grad_norm_ finds it of several; shape ().

    On a GPU it does so by a kernel that goes over lists, which need not add up in the order of the
    one for a tensor.
    """
    if content.is_cuda:
        return torch._foreach_norm([content], order)[0]
    found: torch.Tensor = torch.linalg.vector_norm(content, order)
    return found


def length(args: tuple[Any, ...]) -> int:
    """Of the lists among an operator's arguments."""
    return max((len(x) for x in args if isinstance(x, (list, tuple))), default=0)


def each(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator over lists of tensors, one by one: together they might not fit.

    Returns:
        What it would return: None, or its lists joined.
    """

    def nth(value: Any, n: int) -> Any:
        return value[n : n + 1] if isinstance(value, (list, tuple)) else value

    out = [func(*(nth(x, n) for x in args), **kwargs) for n in range(length(args))]
    return None if out[0] is None else [x for one in out for x in one]
