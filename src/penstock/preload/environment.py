# SPDX-License-Identifier: Apache-2.0
"""What a program's environment must say for the proxy to be in it and to know what is wanted.

Pure functions of what they are given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .folder import PRELOAD, Prepared

SITE = Path(__file__).parent / "site"
# What makes frameworks allocate by buffer where there is a switch for it: a pointer says where a
# buffer begins, not how far it reaches.
BY_BUFFER = {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# XLA makes graphs of a compiled function's kernels, and what a graph reaches stays on the device.
WITHOUT_GRAPHS = "--xla_gpu_enable_command_buffer="


def program_environment(
    prepared: Prepared, environ: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, str]:
    """The environment to run a program in.

    Args:
        prepared: The proxy and the driver behind it.
        environ: The environment as it is; what it says of other things stays.
        settings: Values of ``PENSTOCK_*`` variables, which go to the engine; an empty one removes
            the variable.
    """
    found = dict(environ)
    found[PRELOAD] = _first(str(prepared.proxy), found.get(PRELOAD, ""), ":")
    found["PYTHONPATH"] = _first(str(SITE), found.get("PYTHONPATH", ""), os.pathsep)
    for name, value in BY_BUFFER.items():
        found.setdefault(name, value)
    flags = found.get("XLA_FLAGS", "")
    if WITHOUT_GRAPHS not in flags:
        found["XLA_FLAGS"] = f"{flags} {WITHOUT_GRAPHS}".lstrip()
    for name, value in settings.items():
        found.pop(name, None)
        if value:
            found[name] = value
    return found


def _first(entry: str, others: str, separator: str) -> str:
    """A list with `entry` in front, once; empty ones stay, which to Python are a folder."""
    rest = [other for other in others.split(separator) if other != entry] if others else []
    return separator.join([entry, *rest])
