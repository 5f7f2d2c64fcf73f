# SPDX-License-Identifier: Apache-2.0
"""The C interface as cffi reads it from the headers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import EnvironmentProblem
from penstock.native import api, torch_allocator
from penstock.native.library import library

SOURCE = Path(__file__).parents[2] / "native/api/include/penstock"
# Made for libcuda.so.1, which is C: what Python reads is the rest.
OTHERS = {"interpose"}


def test_every_header_is_read():
    assert set(api.HEADERS) | OTHERS == {path.stem for path in SOURCE.glob("*.h")}


def test_every_function_of_the_headers_is_there():
    text = re.sub(r"/\*.*?\*/", "", api.declarations(), flags=re.DOTALL)
    functions = set(re.findall(r"\b(penstock_\w+)\s*\((?=[^)]*\)\s*;|[^;]*\);)", text))
    assert len(functions) >= 70
    for name in functions:
        assert api.address(getattr(library(), name)) != 0


def test_a_struct_carries_its_size_and_is_zero_besides():
    options = api.new("pager_options", budget=7)
    assert options.struct_size == api.ffi.sizeof("penstock_pager_options")
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
        api.declarations()
    assert "reinstall" in raised.value.remedy


def test_every_hook_of_torch_has_an_entry_point():
    names = {
        *torch_allocator.CONSTRUCTOR,
        *torch_allocator.POOL_CONSTRUCTOR,
        *torch_allocator.SETTERS.values(),
    }
    assert len(names) == 11
    assert all(torch_allocator.entry_point(name) for name in names)
