# SPDX-License-Identifier: Apache-2.0
"""What penstock run puts into a program's environment, and what it leaves as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.preload.environment import SITE, program_environment
from penstock.preload.folder import Prepared

PREPARED = Prepared(proxy=Path("/proxy/libcuda.so.1"), driver=Path("/usr/lib/libcuda.so.1"))
GRAPHS = "--xla_gpu_enable_command_buffer"


def environment(**environ: str) -> dict[str, str]:
    return program_environment(PREPARED, environ, {"PENSTOCK_SAFETY": "strict", "PENSTOCK_X": ""})


def test_the_proxy_comes_first_and_once():
    found = environment(LD_PRELOAD="other.so:/proxy/libcuda.so.1", PYTHONPATH="mine")
    assert found["LD_PRELOAD"] == "/proxy/libcuda.so.1:other.so"
    assert found["PYTHONPATH"] == f"{SITE}:mine"


def test_an_empty_entry_means_something_and_stays():
    assert environment(PYTHONPATH="mine::other:")["PYTHONPATH"] == f"{SITE}:mine::other:"
    assert environment(PYTHONPATH="")["PYTHONPATH"] == str(SITE)


def test_settings_are_handed_on_and_empty_ones_removed():
    found = environment(PENSTOCK_X="old", OTHER="kept")
    assert found["PENSTOCK_SAFETY"] == "strict"
    assert "PENSTOCK_X" not in found
    assert found["OTHER"] == "kept"


def test_jax_allocates_by_buffer_unless_it_is_told_otherwise():
    assert environment()["XLA_PYTHON_CLIENT_ALLOCATOR"] == "cuda_async"
    assert environment(XLA_PYTHON_CLIENT_ALLOCATOR="bfc")["XLA_PYTHON_CLIENT_ALLOCATOR"] == "bfc"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{GRAPHS}="),
        ("--xla_other=1", f"--xla_other=1 {GRAPHS}="),
        (f"{GRAPHS}=FUSION", f"{GRAPHS}=FUSION"),
    ],
)
def test_xla_makes_no_graphs_unless_it_is_told_to(before: str, after: str):
    assert environment(XLA_FLAGS=before)["XLA_FLAGS"] == after
