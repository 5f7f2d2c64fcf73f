# SPDX-License-Identifier: Apache-2.0
"""Penstock: run PyTorch models larger than GPU memory, at the speed of the host link.

Public names only.  Each is imported on first use, so that ``import penstock`` costs
milliseconds and needs neither torch nor a GPU: the command line relies on it.
"""

from __future__ import annotations

from ._version import __version__

# Public name -> the module that defines it.
_PUBLIC = {
    "PenstockError": "penstock.errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_PUBLIC))
