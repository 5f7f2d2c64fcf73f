# SPDX-License-Identifier: Apache-2.0
"""The ctypes side of the torch adapter against torch_allocator.hpp."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from penstock.native import torch_allocator
from penstock.native.allocator_structs import (
    TORCH_SIGNATURES,
    AllocatorOptions,
    TorchOptions,
)
from penstock.native.structs import DeviceOptions

HEADER = Path(__file__).parents[2] / "native/adapters/torch_allocator.hpp"
TEXT = re.sub(r"/\*.*?\*/|//.*?$", "", HEADER.read_text(encoding="utf-8"), flags=re.S | re.M)
TYPES = {
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "const penstock_device_options*": ctypes.POINTER(DeviceOptions),
    "const penstock_allocator_options*": ctypes.POINTER(AllocatorOptions),
}


def declared():
    """Name of each function of the header -> its number of parameters."""
    found = re.findall(r"PENSTOCK_API[^;(]*?\b(penstock_\w+)\s*\((.*?)\);", TEXT, re.S)
    return {
        name: 0 if text.strip() in ("", "void") else text.count(",") + 1 for name, text in found
    }


def test_the_options_are_those_of_the_header():
    body = re.search(r"typedef struct \{(.*?)\} penstock_torch_options;", TEXT, re.S)[1]
    fields = [part.strip().rsplit(maxsplit=1) for part in body.split(";") if part.strip()]
    assert list(TorchOptions._fields_) == [(name, TYPES[kind]) for kind, name in fields]


def test_every_function_is_declared_with_its_number_of_arguments():
    functions = declared()
    bound = {name: len(arguments) for name, (_, arguments) in TORCH_SIGNATURES.items()}
    assert bound.items() <= functions.items()


def test_every_hook_of_torch_has_an_entry_point():
    names = {
        *torch_allocator.CONSTRUCTOR,
        *torch_allocator.POOL_CONSTRUCTOR,
        *torch_allocator.SETTERS.values(),
    }
    assert names <= set(declared())
    assert set(declared()) - set(TORCH_SIGNATURES) <= names
    assert len(torch_allocator.SETTERS) == 8
