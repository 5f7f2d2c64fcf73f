# SPDX-License-Identifier: Apache-2.0
"""Modules that hold a tensor of a model without being a part of it.

A weight may be shared with a module that is not attached, and that module looks it up in its own
dicts. A table (tables.py) in their place tells of these reads as the model's own do. Who shares a
weight later reads it first, which is told anyway.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from .tables import TABLES, Readers, Table


class _All(list[Readers]):
    """Those of every attachment that the module shares a tensor with."""

    def read(self, tensor: torch.Tensor) -> None:
        for readers in self:
            readers.read(tensor)

    def listed(self, tensor: torch.Tensor) -> None:
        for readers in self:
            readers.listed(tensor)


class Shared(Table):
    """The dict of a module that is not attached and shares a tensor with one that is.

    Attributes:
        told: Whom it tells.
    """

    __slots__ = ("told",)

    def __init__(self, content: dict[str, Any]) -> None:
        self.told = _All()
        super().__init__(content, self.told)


class Outside:
    """The modules outside that hold a tensor of this model now.

    Attributes:
        references: How many anybody outside has to each tensor that is held so, by its id().
    """

    def __init__(self, model: nn.Module) -> None:
        self.references = _from_outside(model)
        self._modules = WeakSet(_holders(model, self.references))
        self._readers: Readers | None = None

    def tell(self, readers: Readers) -> None:
        """Have these told of what the modules read, from here on."""
        self._readers = readers
        for module in self._modules:
            for name in TABLES:
                table = module.__dict__[name]
                if not isinstance(table, Shared):
                    table = module.__dict__[name] = Shared(table)
                table.told.append(readers)

    def release(self) -> None:
        """Their dicts are ordinary ones again, if no other attachment wants to be told."""
        for module in self._modules:
            for name in TABLES:
                table = module.__dict__.get(name)
                if isinstance(table, Shared):
                    table.told[:] = [each for each in table.told if each is not self._readers]
                    if not table.told:
                        module.__dict__[name] = dict(dict.items(table))
        self._modules.clear()


def _tensors(modules: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    for module in modules:
        for name in TABLES:
            table = module.__dict__.get(name)  # none in one that is being made, or of TorchScript's
            if isinstance(table, dict):
                yield from (tensor for tensor in dict.values(table) if tensor is not None)


def _kept(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """What modules have as attributes, and in lists there, as nn.LSTM does its weights."""
    for module in modules:
        for value in vars(module).values():
            yield from value if isinstance(value, list | tuple) else (value,)


def _references(modules: Iterable[nn.Module]) -> dict[int, int]:
    """How many there are to each tensor, beyond one for each place in these modules."""
    found = {id(tensor): sys.getrefcount(tensor) for tensor in _tensors(modules)}
    places = Counter(map(id, chain(_tensors(modules), _kept(modules))))
    return {at: count - places[at] for at, count in found.items()}


def _from_outside(model: nn.Module) -> dict[int, int]:
    """How many references to a tensor are neither the model's nor those of every parameter."""
    (usual,) = _references([nn.Linear(1, 1, bias=False, device="meta")]).values()
    found = _references(list(model.modules()))
    return {at: count - usual for at, count in found.items() if count > usual}


def _holders(model: nn.Module, suspects: Collection[int]) -> list[nn.Module]:
    """Modules that hold a tensor of the model's and are none of its own.

    All objects of the process are gone through only if somebody holds one, such as an optimizer.
    """
    if not suspects:
        return []
    own = set(model.modules())
    return [
        module
        for module in gc.get_objects()
        if issubclass(type(module), nn.Module)
        and module not in own
        and any(id(tensor) in suspects for tensor in _tensors([module]))
    ]
