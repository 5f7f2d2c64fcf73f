# SPDX-License-Identifier: Apache-2.0
"""The ctypes side of the C API against penstock.h: structs field by field, functions by name."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from penstock.native import allocator_structs, replay_structs, simulate_structs, structs
from penstock.native.library import _SIGNATURES

MODULES = (structs, allocator_structs, replay_structs, simulate_structs)
SIGNATURES = {
    **_SIGNATURES,
    **allocator_structs.SIGNATURES,
    **replay_structs.SIGNATURES,
    **simulate_structs.SIGNATURES,
}

INCLUDE = Path(__file__).parents[2] / "native/api/include/penstock"
PARTS = ("penstock", "budget", "packing", "simulate")
WHOLE = "".join((INCLUDE / f"{part}.h").read_text("utf-8") for part in PARTS)
TEXT = re.sub(r"/\*.*?\*/", "", WHOLE, flags=re.DOTALL)
TYPES = {
    "uint64_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint16_t": ctypes.c_uint16,
    "uint8_t": ctypes.c_uint8,
    "int32_t": ctypes.c_int32,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
    "void*": ctypes.c_void_p,
    "const void*": ctypes.c_void_p,
    "const uint8_t*": ctypes.c_void_p,
    "const uint32_t*": ctypes.c_void_p,
    "const uint64_t*": ctypes.c_void_p,
    "penstock_stat": allocator_structs.Stat,
}


def declared_structs():
    """Name of each struct of the header -> its fields as (name, ctypes type)."""
    found = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", TEXT, flags=re.DOTALL):
        fields = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            kind, names = re.fullmatch(r"((?:const )?\w+\*?)\s+(.*)", declaration, re.S).groups()
            for field in (field.strip() for field in names.split(",")):
                plain, _, count = field.partition("[")
                base = TYPES[kind]
                fields.append((plain, base * int(count.rstrip("]")) if count else base))
        found[name] = fields
    return found


def bound_structs():
    """The same of the ctypes side, each under the name that its docstring begins with."""
    kinds = [kind for module in MODULES for kind in vars(module).values()]
    named = {
        re.match(r"penstock_\w+", kind.__doc__)[0]: kind
        for kind in kinds
        if isinstance(kind, type)
        and issubclass(kind, ctypes.Structure)
        and kind is not ctypes.Structure
    }
    # One struct belongs to the torch adapter, whose header another test reads.
    return {name: kind for name, kind in named.items() if not name.startswith("penstock_torch_")}


def test_every_struct_is_bound():
    assert set(bound_structs()) == set(declared_structs())
    assert len(declared_structs()) >= 10


@pytest.mark.parametrize("name", sorted(declared_structs()))
def test_the_fields_are_those_of_the_header(name):
    assert list(bound_structs()[name]._fields_) == declared_structs()[name]


def test_every_function_is_bound_with_its_number_of_arguments():
    declared = {}
    for name, arguments in re.findall(
        r"PENSTOCK_API[^;(]*?\b(penstock_\w+)\s*\((.*?)\);", TEXT, re.DOTALL
    ):
        declared[name] = 0 if arguments.strip() == "void" else arguments.count(",") + 1
    bound = {name: len(arguments) for name, (_, arguments) in SIGNATURES.items()}
    assert bound == declared
