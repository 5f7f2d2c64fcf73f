# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels, and whether they can run here.

Importing this package imports neither torch nor triton; the modules in it import triton, and are
imported when a kernel is about to run. Without triton everything still works on the plain
references; only asking for a kernel by name is refused.
"""

from __future__ import annotations

import functools
import importlib.util
import os

from penstock.errors import EnvironmentProblem


@functools.cache
def installed() -> bool:
    """Whether triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether triton runs kernels in its interpreter, on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on", "yes")


def require() -> None:
    """Refuse to go on without triton.

    Raises:
        EnvironmentProblem: If it is not installed.
    """
    if not installed():
        raise EnvironmentProblem(
            "a Triton kernel was asked for, and triton is not installed",
            remedy="pip install triton, or implementation='torch'",
        )


def usable(device_type: str) -> bool:
    """Whether kernels can run on tensors of a device of this type."""
    return installed() and (device_type == "cuda" or (device_type == "cpu" and interpreted()))
