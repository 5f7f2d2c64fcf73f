# SPDX-License-Identifier: Apache-2.0
"""``import penstock``: what it offers, and what it does not cost."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_every_public_name_is_there():
    assert set(penstock.__all__) - {"__version__"} == set(penstock._PUBLIC)
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
        assert name in dir(penstock)


def test_importing_it_imports_nothing_heavy(loaded_by):
    heavy = {"torch", "numpy", "click", "typing"}
    assert heavy & loaded_by("import penstock") == {"typing"} & loaded_by("")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'atach'"):
        _ = penstock.atach


def test_without_torch_it_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import penstock\n"
        "try:\n    penstock.attach\n"
        "except penstock.EnvironmentProblem as error:\n    print(error.remedy)\n"
    )
    assert python(code) == "pip install 'penstock[torch]'"


def test_without_torch_there_is_help_all_the_same():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import penstock, pydoc\n"
        "print('OutOfMemory' in pydoc.render_doc(penstock), 'attach' in dir(penstock))\n"
    )
    assert python(code) == "True False"
