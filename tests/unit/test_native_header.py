# SPDX-License-Identifier: Apache-2.0
"""The C interface as Python reads it from the headers, against what a C compiler makes of them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.errors import EnvironmentProblem
from penstock.native import api, torch_allocator
from penstock.native.library import library

SOURCE = Path(__file__).parents[2] / "native/api/include/penstock"
# For libcuda.so.1, which is C; what Python reads is the rest.
OTHERS = {"interpose"}


C_TYPES = {
    ctypes.c_int32: "int32_t",
    ctypes.c_int64: "int64_t",
    ctypes.c_uint64: "uint64_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_double: "double",
    ctypes.c_char_p: "const char*",
}


def c_type(kind):
    """Pointers of all kinds are void*, which C takes for any."""
    return C_TYPES.get(kind, "void*")


def test_every_header_is_read():
    assert set(api.HEADERS) | OTHERS == {path.stem for path in SOURCE.glob("*.h")}


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_layouts_and_types_are_the_compilers(tmp_path):
    """Every struct's size, every field's place and size, and every function's type."""
    lines = ["#include <stddef.h>"]
    lines += [f'#include "penstock/{name}.h"' for name in api.HEADERS]
    for name, kind in api.INTERFACE.structs.items():
        struct = f"penstock_{name}"
        lines.append(f'_Static_assert(sizeof({struct}) == {ctypes.sizeof(kind)}, "{name}");')
        for field, *_ in kind._fields_:
            place = getattr(kind, field)
            lines += [
                f'_Static_assert(offsetof({struct}, {field}) == {place.offset}, "{field}");',
                f'_Static_assert(sizeof((({struct}*)0)->{field}) == {place.size}, "{field}");',
            ]
    for name, (result, arguments) in api.INTERFACE.functions.items():
        call = f"{name}({', '.join(f'*({c_type(kind)}*)p' for kind in arguments)})"
        kept = f"*({c_type(result)}*)p = " if result else ""
        lines.append(f"void call_{name}(void* p) {{ {kept}{call}; }}")
    program = tmp_path / "layouts.c"
    program.write_text("\n".join(lines) + "\n")
    command = ["cc", "-std=c11", "-Wconversion", "-Werror", "-fsyntax-only", "-I"]
    done = subprocess.run(
        [*command, str(SOURCE.parent), str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_function_is_there():
    assert len(api.INTERFACE.functions) >= 80
    for name, (result, arguments) in api.INTERFACE.functions.items():
        function = getattr(library(), name)
        assert (function.restype, function.argtypes) == (result, arguments)


def test_a_struct_carries_its_size_and_is_zero_besides():
    options = api.new("pager_options", budget=7)
    assert options.struct_size == ctypes.sizeof(options)
    assert (options.budget, options.chunk_bytes, options.link_gb_per_s) == (7, 0, 0.0)
    assert api.as_dict(api.new("stat", peak=3)) == {
        "current": 0,
        "peak": 3,
        "allocated": 0,
        "freed": 0,
    }


def test_without_headers_it_is_an_installation_that_is_broken(monkeypatch, tmp_path):
    monkeypatch.setattr(api, "FOLDERS", (tmp_path,))
    with pytest.raises(EnvironmentProblem, match="headers") as raised:
        api.header_text()
    assert "reinstall" in raised.value.remedy


def test_every_hook_of_torch_has_an_entry_point():
    names = {
        *torch_allocator.CONSTRUCTOR,
        *torch_allocator.POOL_CONSTRUCTOR,
        *torch_allocator.SETTERS.values(),
    }
    assert len(names) == 11
    assert all(torch_allocator.entry_point(name) for name in names)
