# SPDX-License-Identifier: Apache-2.0
"""Nodes of autograd's graph: which are a module's, and whether autograd runs now.

Thread rule: any thread; a graph task is its thread's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..leaves import tree_leaves

graph_task: Callable[[], int] = torch._C._current_graph_task_id
NO_TASK = -1


def makers(value: Any) -> list[Any]:
    """The nodes of which autograd will reach one before any other of the module's."""
    if not isinstance(value, torch.Tensor) or value.grad_fn is None:
        return []
    base = value._base
    if base is None or base.grad_fn is None:
        return [value.grad_fn]
    # When a view is changed in place, its own node is no longer part of the graph.
    return [value.grad_fn, base.grad_fn]


def sources(args: Any, kwargs: Any) -> list[Any]:
    """The nodes that made a module's input, which autograd reaches after all of the module's."""
    if not torch.is_grad_enabled():
        return []
    values = [*args, *kwargs.values()]
    # Walking through a tree takes ten times as long, and most modules are given tensors alone.
    if not all(value is None or isinstance(value, torch.Tensor) for value in values):
        values = tree_leaves(values)
    return [x.grad_fn for x in values if isinstance(x, torch.Tensor) and x.grad_fn is not None]


def in_backward() -> bool:
    """Whether autograd is running on this thread."""
    return graph_task() != NO_TASK
