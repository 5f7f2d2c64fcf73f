# SPDX-License-Identifier: Apache-2.0
"""The stacks that the tests run on, each built once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from proxy_stack import Stack, build_stack


@pytest.fixture(scope="session")
def stacks(tmp_path_factory):
    """Stacks by sanitizer, built when first asked for."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    made: dict[str, Stack] = {}

    def get(sanitizer: str) -> Stack:
        if sanitizer not in made:
            made[sanitizer] = build_stack(tmp_path_factory.mktemp(sanitizer), sanitizer)
        return made[sanitizer]

    return get


@pytest.fixture
def stack(stacks):
    return stacks("plain")
