# SPDX-License-Identifier: Apache-2.0
"""Launch one known kernel in each of two ways, and ask the proxy what it has seen.

Run as a process under the proxy: ``python -m penstock.cli.checks.preload_selftest`` prints one line
of JSON. The kernel is empty, and the driver compiles it from text, so nothing but the driver is
needed.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p
from typing import Any

NAME = b"penstock_selftest"
WAYS = 2
MAJOR, MINOR = 75, 76
LEGACY_STREAM = 1
SINCE = 4000
PTX = """.version 7.0
.target sm_{major}{minor}
.address_size 64
.visible .entry {name}() {{ ret; }}
"""


class CudaError(Exception):
    """A call of the driver that failed."""


def main() -> int:
    """Print what was seen; exits 0 if that is all."""
    try:
        seen, late = run()
        observed = f"{seen} of {WAYS} launches seen"
        if late:
            observed += "; the driver was loaded before the proxy"
        found = {"ok": seen == WAYS and not late, "observed": observed}
    except (CudaError, OSError, AttributeError) as error:
        found = {"ok": False, "observed": str(error)}
    print(json.dumps(found))
    return 0 if found["ok"] else 1


def run() -> tuple[int, bool]:
    """Launch; returns how many launches the proxy counted, and whether it came too late."""
    cuda = ctypes.CDLL("libcuda.so.1")
    calls = cuda.penstock_proxy_entry_calls
    calls.restype, calls.argtypes = c_uint64, [c_char_p]
    function = _kernel(cuda)
    before = calls(b"cuLaunchKernel")
    for launch in (cuda.cuLaunchKernel, _queried(cuda)):
        _check("cuLaunchKernel", launch(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
    _check("cuCtxSynchronize", cuda.cuCtxSynchronize())
    return calls(b"cuLaunchKernel") - before, _is_late(cuda)


def _kernel(cuda: ctypes.CDLL) -> c_void_p:
    """The empty kernel, in the first device's own context."""
    context, module, function = c_void_p(), c_void_p(), c_void_p()
    major, minor = c_int(), c_int()
    _check("cuInit", cuda.cuInit(0))
    _check("cuDeviceGetAttribute", cuda.cuDeviceGetAttribute(byref(major), MAJOR, 0))
    _check("cuDeviceGetAttribute", cuda.cuDeviceGetAttribute(byref(minor), MINOR, 0))
    _check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    _check("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
    # An older PTX runs on every later GPU, and version 7.0 knows none after sm_80.
    target = min((major.value, minor.value), (8, 0))
    text = PTX.format(major=target[0], minor=target[1], name=NAME.decode()).encode()
    _check("cuModuleLoadData", cuda.cuModuleLoadData(byref(module), text))
    _check("cuModuleGetFunction", cuda.cuModuleGetFunction(byref(function), module, NAME))
    return function


def _queried(cuda: ctypes.CDLL) -> Any:
    """The launch as the CUDA runtime finds it."""
    found, status = c_void_p(), c_int()
    query = cuda.cuGetProcAddress_v2
    query.argtypes = [c_char_p, c_void_p, c_int, c_uint64, c_void_p]
    _check(
        "cuGetProcAddress",
        query(b"cuLaunchKernel", byref(found), SINCE, LEGACY_STREAM, byref(status)),
    )
    kinds = [c_void_p, *[ctypes.c_uint] * 7, c_void_p, c_void_p, c_void_p]
    return ctypes.CFUNCTYPE(c_int, *kinds)(found.value or 0)


def _is_late(cuda: ctypes.CDLL) -> bool:
    """The last word of the proxy's counters."""
    words = (c_uint64 * WORDS)(ctypes.sizeof(c_uint64) * WORDS)
    cuda.penstock_proxy_get_counters(words)
    return bool(words[WORDS - 1])


# Of penstock_proxy_counters in interpose.h, the first of which is its size.
WORDS = 16


def _check(call: str, status: int) -> None:
    if status:
        raise CudaError(f"{call} failed with {status}")


if __name__ == "__main__":
    sys.exit(main())
