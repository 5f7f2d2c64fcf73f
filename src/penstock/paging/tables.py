# SPDX-License-Identifier: Apache-2.0
"""The dicts that a module looks its tensors up in, made to tell who reads them.

``nn.Module.__getattr__`` looks a parameter up in ``module._parameters``, and so does everything
that walks through a model (``parameters()``, ``state_dict()``, ``_apply()``). A Table in its place
sees each read, from whatever code, for some 100 ns; within a use of the module that owns it, it
asks no further. Replacing an entry is not prevented.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from penstock.errors import UsageError

TABLES = ("_parameters", "_buffers")


class Readers(Protocol):
    """What is told of reads."""

    def read(self, tensor: torch.Tensor) -> None:
        """Somebody asks for this tensor, to use it."""

    def listed(self, tensor: torch.Tensor) -> None:
        """Somebody walks through the tensors and has come to this one."""


class Table(dict[str, Any]):
    """A module's parameters or buffers.

    Attributes:
        open: How many uses of the module are running: its tensors are there.
        readers: Told of every other read; None where reads need not be known.
        replaced: Names that stand for another tensor by now, which may be another module's.
    """

    __slots__ = ("open", "readers", "replaced")

    def __init__(self, content: dict[str, Any], readers: Readers | None) -> None:
        super().__init__(content)
        self.open = 0
        self.readers = readers
        self.replaced: set[str] = set()

    def __setitem__(self, key: str, tensor: Any) -> None:
        self.replaced.add(key)
        dict.__setitem__(self, key, tensor)

    def __getitem__(self, key: str) -> Any:
        tensor = dict.__getitem__(self, key)
        if not self.open or key in self.replaced:
            self._read(tensor)
        return tensor

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        return self[key] if dict.__contains__(self, key) else default

    def pop(self, key: str, *default: Any) -> Any:
        """As of a dict."""
        if key in self:
            self[key]
        return dict.pop(self, key, *default)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self)  # as this is ours, dict() of it comes to __getitem__

    def copy(self) -> dict[str, Any]:
        """As of a dict: somebody has its tensors from here on."""
        return dict(self)

    def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        """The entries, each told of when it is come to."""
        for key, tensor in list(dict.items(self)):
            self._list(tensor)
            yield key, tensor

    def values(self) -> Iterator[Any]:  # type: ignore[override]
        """The tensors, each told of when it is come to."""
        return (tensor for _, tensor in self.items())

    def _read(self, tensor: Any) -> None:
        if self.readers is not None and tensor is not None:
            self.readers.read(tensor)

    def _list(self, tensor: Any) -> None:
        if not self.open and self.readers is not None and tensor is not None:
            self.readers.listed(tensor)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UsageError(
            "an attached model cannot be copied or pickled: its weights are not its own",
            remedy="its state_dict(), a copy made before attaching, or detach() first",
        )


def install(model: nn.Module, readers: Readers | None) -> dict[nn.Module, list[Table]]:
    """Put tables in the place of every module's dicts; returns them."""
    made: dict[nn.Module, list[Table]] = {}
    for module in model.modules():
        made[module] = [Table(module.__dict__[name], readers) for name in TABLES]
        module.__dict__.update(zip(TABLES, made[module], strict=True))
    return made


def uninstall(tables: dict[nn.Module, list[Table]]) -> None:
    """Ordinary dicts again, with the entries that there are now."""
    for module, own in tables.items():
        for name, table in zip(TABLES, own, strict=True):
            if module.__dict__.get(name) is table:
                module.__dict__[name] = dict(dict.items(table))


def is_attached(module: nn.Module) -> bool:
    """Whether the module's tensors are those of an attachment."""
    return type(module.__dict__.get("_parameters")) is Table
