# SPDX-License-Identifier: Apache-2.0
"""What lies in the arguments and results of operators and modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves as _tree_leaves

_NUMBERS = type(None), bool, int, float, str
_OF_TORCH = torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.layout
_LEAVES = frozenset((*_NUMBERS, *_OF_TORCH, torch.memory_format))


def tree_leaves(tree: Any) -> list[Any]:
    """PyTorch's, faster for tensors and numbers in tuples, lists and dicts.

    Args:
        tree: Of anything that is registered with it.
    """
    found: list[Any] = []
    _add((tree,), found)
    return found


def _add(values: Iterable[Any], found: list[Any]) -> None:
    for value in values:
        kind = type(value)
        if kind in _LEAVES:
            found.append(value)
        elif kind is tuple or kind is list:
            _add(value, found)
        elif kind is dict:
            _add(value.values(), found)
        else:
            found += _tree_leaves(value)
