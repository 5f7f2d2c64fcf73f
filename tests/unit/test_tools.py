# SPDX-License-Identifier: Apache-2.0
"""The checks in tools/ find what they are there for, and this tree passes them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPDX = "SPDX-License-Identifier: Apache-2.0\n"
UNFINISHED = "".join(("TO", "DO"))


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layers = tool("check_layers")
text = tool("check_text")
symbols = tool("check_symbols")
docs = tool("generate_docs")
kernels = tool("compile_kernels")


def put(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_this_tree_keeps_its_layers():
    assert list(layers.native_violations(ROOT)) == []
    assert list(layers.python_violations(ROOT)) == []


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("base/a.hpp", '#include "engine/b.hpp"', "layer base must not include"),
        ("policy/a.cpp", '#include "driver/driver.hpp"', "layer policy must not include"),
        ("policy/planning/a.cpp", "#include <thread>", "is pure"),
        ("engine/paging/a.cpp", '#include "process/program.hpp"', "must not include"),
        ("engine/order/a.cpp", '#include "engine/paging/pager.hpp"', "must not include"),
        ("driver/cuda/a.cpp", '#include "driver/emulated/driver.hpp"', "must not include"),
        ("policy/a.cpp", "#include <mutex>", "is pure"),
        ("policy/a.cpp", "#include <chrono>", "is pure"),
        ("base/a.hpp", "# include <sys/mman.h>", "is pure"),
        ("driver/a.cpp", '#include "policy/types.hpp"', "layer driver must not include"),
        ("engine/order/a.cpp", '#include "api/handles.hpp"', "layer engine/order must not include"),
        ("api/a.cpp", '#include "adapters/x.hpp"', "layer api must not include"),
        ("driver/a.cpp", "#include <cuda.h>", "must not be needed"),
        ("engine/order/a.cpp", '#include "b.hpp"', "by its layer"),
        ("extra/a.cpp", "", "is in no wing"),
    ],
)
def test_a_native_violation_is_found(name, line, expected, tmp_path):
    put(tmp_path, {f"native/{name}": line + "\n"})
    found = list(layers.native_violations(tmp_path))
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("engine/order/a.cpp", '#include "policy/types.hpp"\n#include <mutex>'),
        ("driver/a.cpp", '#include "base/units.hpp"\n#include <sys/mman.h>'),
        ("policy/a.cpp", '#include "base/units.hpp"\n#include <vector>'),
        ("api/a.cpp", '#include "penstock/penstock.h"'),
    ],
)
def test_what_a_native_layer_may_do(name, line, tmp_path):
    put(tmp_path, {f"native/{name}": line + "\n"})
    assert list(layers.native_violations(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("models/gpt.py", "from penstock.cli.main import main", "must not import penstock.cli"),
        ("models/gpt.py", "from penstock import config", "must not import penstock.config"),
        ("models/gpt.py", "from ..config import load", "must not import penstock.config"),
        ("models/gpt.py", "from .. import native", "must not import penstock.native"),
        ("models/gpt.py", "def f():\n    import penstock.cli", "must not import penstock.cli"),
        ("config/load.py", "import penstock.native", "must not import penstock.native"),
        ("units.py", "from .config import x", "must not import penstock.config"),
        ("cli/gpt.py", "import torch", "inside the function"),
        ("cli/gpt.py", "try:\n    import torch.nn\nexcept ImportError:\n    pass", "inside the"),
        ("report/x.py", "from rich.table import Table", "inside the function"),
        ("surprise.py", "", "in no layer"),
    ],
)
def test_a_python_violation_is_found(name, line, expected, tmp_path):
    put(tmp_path, {f"src/penstock/{name}": line + "\n"})
    found = list(layers.python_violations(tmp_path))
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("models/gpt.py", "import torch\nfrom penstock.errors import UsageError"),
        ("models/gpt.py", "from penstock import __version__"),
        ("models/gpt.py", "from .configs import x\nfrom . import weights"),
        ("cli/gpt.py", "def f():\n    import torch"),
        ("cli/gpt.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("paging/attach.py", "import torch\nfrom penstock import native, config"),
    ],
)
def test_what_python_may_do(name, line, tmp_path):
    put(tmp_path, {f"src/penstock/{name}": line + "\n"})
    assert list(layers.python_violations(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.py", "x = 1\n", "no SPDX line"),
        ("Makefile", "all:\n", "no SPDX line"),
        ("a.py", f"# {SPDX}x = 1  # {UNFINISHED}: more\n", "finish it later"),
        ("a.md", "see /" + "home/someone/x\n", "somebody's machine"),
        ("a.toml", "x = '/" + "root/.cache'\n", "somebody's machine"),
        (
            "benchmarks/results/a.json",
            '["x=/' + 'work/a.so", "iss' + 'ue 2"]\n',
            "somebody's machine",
        ),
        ("a.md", "from https://py" + "pi.org/simple\n", "package index"),
        ("a.hpp", f"// {SPDX}// caf\u00e9\n", "not ASCII"),
        ("a.cpp", f"// {SPDX}" + "int x;\n" * 500, "501 lines"),
        ("a.hpp", f"// {SPDX}" + "int x;\n" * 500 + "// not to be edited\n", "502 lines"),
        ("a.md", "as iss" + "ue 2 says\n", "number of an"),
    ],
)
def test_a_text_violation_is_found(name, content, expected, tmp_path):
    put(tmp_path, {name: content})
    subprocess.run(["git", "-C", tmp_path, "init", "-q"], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", name], check=True)
    found = list(text.violations(tmp_path))
    assert len(found) == 1
    assert expected in found[0]


def test_what_a_tool_has_made_may_be_long(tmp_path):
    made = f"// {SPDX}// Made by a tool; not to be edited.\n" + "int x;\n" * 600
    put(tmp_path, {"a.hpp": made})
    subprocess.run(["git", "-C", tmp_path, "init", "-q"], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    assert list(text.violations(tmp_path)) == []


def test_paths_within_a_project_are_no_violation(tmp_path):
    put(tmp_path, {"a.md": "docs/work/x, <root>/home/x, ./tmp/x, a/root/x, /proc/x, caf\u00e9\n"})
    subprocess.run(["git", "-C", tmp_path, "init", "-q"], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    assert list(text.violations(tmp_path)) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_a_stray_symbol_and_a_missing_one_are_found(tmp_path):
    source = tmp_path / "a.cpp"
    source.write_text('extern "C" int penstock_one() { return 1; }\nint stray() { return 2; }\n')
    header = tmp_path / "a.h"
    header.write_text(
        "#define PENSTOCK_API\nPENSTOCK_API int penstock_one(void);\n"
        "/* PENSTOCK_API int penstock_gone(void); */\n"
        "PENSTOCK_API const char*\n  penstock_two(int x);\n"
    )
    library = tmp_path / "liba.so"
    command = ["g++", "-shared", "-fPIC", "-nodefaultlibs", "-o", library, source]
    subprocess.run(command, check=True)
    found = symbols.check(library, header)
    assert found == ["exports _Z5strayv", "does not export penstock_two"]
    command[3:4] = ["-Wl,--no-as-needed"]
    subprocess.run([*command, "-lstdc++"], check=True)
    assert "links libstdc++.so.6" in symbols.check(library, header)


def test_the_reference_is_current():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_reference_names_every_option_and_flag():
    page = docs.configuration()
    for option in docs.OPTIONS:
        assert f"`{option.variable}`" in page
        for alias in option.aliases:
            assert f"`{alias.variable}`" in page
    commands = docs.command_line()
    for name in docs.VERBS:
        assert f"## penstock {name}" in commands


def test_a_kernel_that_was_changed_and_not_compiled_is_found(tmp_path):
    assert kernels.stale() == []
    source, made = tmp_path / "sum.cu", tmp_path / "sum_ptx.hpp"
    source.write_text("one")
    assert kernels.stale(tmp_path) == ["sum.cu"]
    made.write_text(kernels.HEAD.format(source="sum.cu", name="k", digest=kernels.digest(source)))
    assert kernels.stale(tmp_path) == []
    source.write_text("two")
    assert kernels.stale(tmp_path) == ["sum.cu"]
