# SPDX-License-Identifier: Apache-2.0
"""Check that no layer reaches upwards, in C++ and in Python.

C++: an ``#include "layer/..."`` must name a layer that the including one may see, and the pure
layers include no header for locks, files or clocks. Python: the packages of penstock import only
what `PYTHON_LAYERS` allows, and heavy libraries are imported at module level only where `HEAVY_OK`
says so. Prints one line a violation; exits 1 if there is any.

Usage: python tools/check_layers.py [ROOT]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Wing -> the wings that it may include. A file belongs to the longest name here that its path
# begins with, and a name stands for all below it; every wing sees itself.
_DRIVER = {"driver/driver.hpp", "driver/forwarding.hpp", "driver/parallel.hpp", "driver/text.hpp"}
_MACHINE = {"base", "codec", "policy", *_DRIVER}
_ENGINE = {*_MACHINE, "engine"}
_BACK_END = {"base", "codec", "driver/ledger.hpp", *_DRIVER}
NATIVE_LAYERS = {
    "base": set(),
    "policy": {"base"},
    "codec": {"base"},
    "driver": {"base", "codec"},
    "driver/cuda": {*_BACK_END, "driver/kernels"},
    "driver/emulated": _BACK_END,
    "engine/order": _MACHINE,
    "engine/allocation": {*_MACHINE, "engine/order"},
    "engine/paging": {*_MACHINE, "engine/order"},
    "engine/managed": {*_MACHINE, "engine/order", "engine/paging"},
    "engine/recording": {"base", "driver/text.hpp"},
    "process": _ENGINE,
    "lab": {*_ENGINE, "driver/ledger.hpp", "process"},
    "api": {*_ENGINE, "driver", "process", "lab", "penstock"},
    # The proxy is C and stands alone; it knows the engine by penstock/interpose.h.
    "preload": {"penstock"},
    "adapters": {*_ENGINE, "process", "api", "penstock"},
}
# Data in, a plan or other data out: these layers must not lock, wait, read a clock or touch a file.
PURE_LAYERS = {"base", "codec", "policy"}
IMPURE_HEADERS = re.compile(
    r"mutex|shared_mutex|thread|condition_variable|future|atomic|chrono|ctime|time\.h|random"
    r"|fstream|iostream|cstdio|stdio\.h|filesystem|dlfcn\.h|pthread\.h|unistd\.h|sys/.*"
)
# What Penstock does without: the headers of CUDA and of torch.
FOREIGN_HEADERS = re.compile(r"(cuda|cublas|nvrtc|torch|c10|ATen|pybind11|Python\.h).*")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)

_RUN = {"results", "errors", "bound", "units", "files", "config", "host", "native", "report"}
_RUN |= {"models", "allocator", "paging"}
# Package or module of penstock -> the others that it may import; None stands for all.
PYTHON_LAYERS: dict[str, set[str] | None] = {
    "_version": set(),
    "text": set(),
    "errors": {"text"},
    "units": {"errors"},
    "bound": set(),
    "results": {"_version"},
    "files": {"errors", "units"},
    "config": {"errors", "units", "files"},
    "host": {"errors", "units"},
    "native": {"errors", "units"},
    "preload": {"errors"},
    "report": {"errors", "bound", "results", "units", "files", "text"},
    "trace": {"errors", "units", "files", "host"},
    "models": {"errors", "units", "files"},
    "allocator": {"errors", "units", "config", "native"},
    "paging": {"errors", "bound", "units", "config", "host", "native", "report", "allocator"},
    "fusion": {"errors", "units", "files", "models"},
    "runner": {*_RUN, "fusion"},
    "finetune": {*_RUN, "trace", "runner"},
    "cli": None,
    "__init__": None,
    "__main__": None,
}
HEAVY = {"torch", "triton", "numpy", "safetensors", "tokenizers", "transformers", "peft", "rich"}
HEAVY_OK = {"allocator", "paging", "trace", "models", "fusion", "runner", "finetune"}


def native_violations(root: Path) -> Iterator[str]:
    """Check every include below ``native/``."""
    for path in sorted((root / "native").rglob("*")):
        if path.suffix not in (".cpp", ".hpp", ".c", ".h"):
            continue
        place = path.relative_to(root)
        layer = _wing(path.relative_to(root / "native"))
        if layer is None:
            yield f"{place} is in no wing; add it to tools/check_layers.py"
            continue
        pure = layer.partition("/")[0] in PURE_LAYERS
        for own, system in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if own and "/" in own and not _sees(layer, own):
                yield f"{place}: layer {layer} must not include {own}"
            if own and "/" not in own:
                yield f"{place}: include {own} by its layer"
            if system and pure and IMPURE_HEADERS.fullmatch(system):
                yield f"{place}: layer {layer} is pure and must not include <{system}>"
            if FOREIGN_HEADERS.fullmatch(own or system):
                yield f"{place}: {own or system} must not be needed to build"


def _wing(path: Path) -> str | None:
    """The longest name of a wing that the path begins with."""
    folders = [str(folder) for folder in path.parents][:-1]
    return next((folder for folder in folders if folder in NATIVE_LAYERS), None)


def _sees(wing: str, target: str) -> bool:
    """Whether a file of `wing` may include `target`."""
    seen = {wing, *NATIVE_LAYERS[wing]}
    return any(target == name or target.startswith(f"{name}/") for name in seen)


def python_violations(root: Path) -> Iterator[str]:
    """Check every import below ``src/penstock/``."""
    package = root / "src" / "penstock"
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        layer = inside.parts[0].removesuffix(".py")
        place = path.relative_to(root)
        allowed = PYTHON_LAYERS.get(layer, set())
        if layer not in PYTHON_LAYERS:
            yield f"{place}: {layer} is in no layer; add it to tools/check_layers.py"
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, target in _own_imports(tree, inside):
            if allowed is not None and target not in allowed and target != layer:
                yield f"{place}:{line}: {layer} must not import penstock.{target}"
        if layer not in HEAVY_OK:
            for line, name in _heavy_imports(tree):
                yield f"{place}:{line}: import {name} inside the function that needs it"


def _own_imports(tree: ast.Module, inside: Path) -> Iterator[tuple[int, str]]:
    """Every import of a part of penstock, as (line, name of the part)."""
    for node in ast.walk(tree):
        for name in _imported_modules(node, inside):
            parts = name.split(".")
            if parts[0] == "penstock" and len(parts) > 1:
                yield node.lineno, parts[1]


def _imported_modules(node: ast.AST, inside: Path) -> list[str]:
    """Absolute names of the modules that an import statement reaches; else none."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        folders = ["penstock", *inside.parent.parts]
        folders = folders[: len(folders) - node.level + 1]
        base = ".".join([*folders, *([base] if base else [])])
    if base == "penstock":
        return [f"penstock.{alias.name}" for alias in node.names if not alias.name.startswith("__")]
    return [base]


def _heavy_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Heavy libraries imported when the module is, type checking aside."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            pending += [child for child in ast.walk(node) if isinstance(child, ast.stmt)][1:]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in HEAVY)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in HEAVY)


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    violations = [*native_violations(root), *python_violations(root)]
    for violation in violations:
        print(violation, file=sys.stderr)
    print(f"layers: {len(violations)} violation(s)" if violations else "layers: ok")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
