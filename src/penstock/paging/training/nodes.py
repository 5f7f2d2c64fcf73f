# SPDX-License-Identifier: Apache-2.0
"""Nodes of autograd's graph: which are a module's, and whether autograd runs now.

Thread rule: any thread; a graph task is its thread's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual

from ..leaves import tree_leaves

graph_task: Callable[[], int] = torch._C._current_graph_task_id
NO_TASK = -1


def _carried(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, its tangent, and what each stands for within transforms of torch.func."""
    yield value
    if forward_ad._current_level >= 0 and value.layout is torch.strided:
        tangent = unpack_dual(value).tangent
        if tangent is not None:
            yield from _carried(tangent)
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
        yield value


def makers(value: Any) -> list[Any]:
    """The nodes of which autograd will reach one before any other of the module's."""
    found = _carried(value) if isinstance(value, torch.Tensor) else ()
    nodes = []
    for each in found:
        if each.grad_fn is not None:
            nodes.append(each.grad_fn)
            # When a view is changed in place, its own node is no longer part of the graph.
            if each._base is not None and each._base.grad_fn is not None:
                nodes.append(each._base.grad_fn)
    return nodes


def sources(args: Any, kwargs: Any) -> list[Any]:
    """The nodes that made a module's input, which autograd reaches after all of the module's."""
    if not torch.is_grad_enabled():
        return []
    values = [*args, *kwargs.values()]
    # Walking through a tree takes ten times as long, and most modules are given tensors alone.
    if not all(value is None or isinstance(value, torch.Tensor) for value in values):
        values = tree_leaves(values)
    tensors = (x for value in values if isinstance(value, torch.Tensor) for x in _carried(value))
    return [x.grad_fn for x in tensors if x.grad_fn is not None]


def in_backward() -> bool:
    """Whether autograd is running on this thread."""
    return graph_task() != NO_TASK


class NodeHooks:
    """What nodes call, until it is dropped.

    A module may keep a graph: in a loss of its own, in a weight made of others. That is out of
    sight for Python's collector, and keeps all that its hooks refer to, the module with it.
    """

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def make(self, call: Callable[[], None]) -> Callable[[Any], None]:
        """A hook for any number of nodes."""
        calls, number = self._calls, len(self._calls)
        calls.append(call)

        def hook(gradients: Any) -> None:
            if calls:
                calls[number]()

        return hook

    def drop(self) -> None:
        """They do nothing from here on."""
        self._calls.clear()
