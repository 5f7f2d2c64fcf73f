# SPDX-License-Identifier: Apache-2.0
"""Tensors that hang on parameters and modules in objects of a library's own, as bitsandbytes' do.

Its 4-bit weights have scales in a ``QuantState`` and its 8-bit ones in a ``MatmulLtState``: no
parameters, no buffers, and as much as an eighth of the weights. They are read with the weight and
by nobody else, and so they are blocks of its module like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

LIBRARIES = ("bitsandbytes",)
DEEPEST = 3  # a state within a state


def _is_theirs(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in LIBRARIES


def hanging_on(module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor, object]]:
    """(path, attribute, tensor, the object that holds it) of a module, each tensor once."""
    own = {id(t) for t in (*module._parameters.values(), *module._buffers.values())}
    roots = [(key, each) for key, each in dict.items(module._parameters) if _is_theirs(each)]
    if _is_theirs(module):
        roots += [(key, each) for key, each in vars(module).items() if _is_holder(each)]
    for key, root in roots:
        for found in _within(root, key, DEEPEST):
            if id(found[2]) not in own:
                own.add(id(found[2]))
                yield found


def _is_holder(value: Any) -> bool:
    return _is_theirs(value) and not isinstance(value, nn.Module) and hasattr(value, "__dict__")


def _within(holder: Any, path: str, depth: int) -> Iterator[tuple[str, str, torch.Tensor, object]]:
    for key, value in vars(holder).items():
        if isinstance(value, torch.Tensor):
            if not isinstance(value, nn.Parameter) and value.numel():
                yield f"{path}.{key}", key, value, holder
        elif depth and _is_holder(value):
            yield from _within(value, f"{path}.{key}", depth - 1)
