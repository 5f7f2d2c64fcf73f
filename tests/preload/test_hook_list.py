# SPDX-License-Identifier: Apache-2.0
"""The check of the list finds what it is there for, and the list passes it."""

from __future__ import annotations

import pytest
from proxy_stack import PROXY
from proxy_sweep import check_hooks

ROWS = (PROXY / "hooks.def").read_text()
FREE = "PENSTOCK_ROW(cuMemFree, _v2, 3020,"


def problems(tmp_path, text: str) -> list[str]:
    path = tmp_path / "hooks.def"
    path.write_text(text)
    rows = check_hooks.read_rows(path)
    return check_hooks.check_list(rows) + check_hooks.check_bodies(rows, PROXY)


def test_the_list_and_its_bodies(tmp_path):
    assert problems(tmp_path, ROWS) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (FREE, FREE.replace("cuMemFree", "cuMemAlloc"), "cuMemAlloc_v2 stands 2 times"),
        (FREE, FREE.replace("cuMemFree", "cuMemFreeAll"), "no body for cuMemFreeAll_v2"),
        (
            FREE,
            "PENSTOCK_ROW(cuMemAlloc, _v9, 3020,",
            "cuMemAlloc has two forms since 3020",
        ),
        (
            "cuMemFreeAsync, , ptsz",
            "cuMemFreeAsync, , other",
            "its name and its default stream disagree",
        ),
        ("(WORK, NULL, copy, 0, src, bytes)", "(OWN)", "no body for cuMemcpyDtoA_v2"),
        ("RELEASE, (OWN), ", "RELEASE, (FIRST, 0), ", "penstock_on_cuMemFree_v2 has no row"),
        ("LEGACY, LAUNCH", "NO_STREAM, FILL", "ok"),
    ],
)
def test_a_mistake_in_the_list_is_found(tmp_path, old, new, expected):
    assert old in ROWS
    found = problems(tmp_path, ROWS.replace(old, new, 1))
    if expected == "ok":  # a function of which there is one form only
        assert found == []
    else:
        assert any(expected in line for line in found)


def test_exports_are_compared(stack, tmp_path):
    rows = check_hooks.read_rows(PROXY / "hooks.def")
    assert check_hooks.check_exports(rows, stack.proxy) == []
    missing = check_hooks.check_exports(rows[1:], stack.proxy)
    assert missing == [f"libcuda.so.1 exports {rows[0].exported}"]


def test_versions_are_compared(tmp_path):
    header = tmp_path / "cudaTypedefs.h"
    header.write_text("typedef int (*PFN_cuMemFree_v3030)(int);\n")
    rows = check_hooks.read_rows(PROXY / "hooks.def")
    assert check_hooks.check_versions(rows, header) == [
        "cuMemFree_v2: no form of cuMemFree came with 3020"
    ]
