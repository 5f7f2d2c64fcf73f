# SPDX-License-Identifier: Apache-2.0
"""Configuration: one table of options, and one rule of who wins.

A flag beats an API argument, which beats a ``PENSTOCK_*`` variable, which beats the nearest
``penstock.toml`` (or ``[tool.penstock]`` of a ``pyproject.toml``), which beats the default.
`schema` holds the table, `resolve` the rule, `files` finds the file. Standard library only.
"""

from .options import allocator_options, emulated_options
from .resolve import WARNED, Resolved, Setting, load, resolve
from .schema import OPTIONS, Option, Settings, find_option

__all__ = [
    "OPTIONS",
    "WARNED",
    "Option",
    "Resolved",
    "Setting",
    "Settings",
    "allocator_options",
    "emulated_options",
    "find_option",
    "load",
    "resolve",
]
