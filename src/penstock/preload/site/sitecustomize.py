# SPDX-License-Identifier: Apache-2.0
"""What Python runs when it starts under `penstock run`; costs less than a millisecond or two.

Where the proxy is in the process, importing torch lets Penstock allocate for it, and importing CuPy
switches CuPy's pool off: buffers are then allocations of their own, which the engine can tell
apart. In any other process this does nothing but what would have happened without it: a
sitecustomize of somebody else's is run, and this folder leaves the search path.
"""

from __future__ import annotations

import os
import sys

# importlib.machinery is this and 0.7 ms.
from _frozen_importlib_external import PathFinder

# Importing typing would cost more than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


def _run_other() -> None:
    """Run the sitecustomize that this one hides."""
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    spec: Any = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from _frozen_importlib import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _has_proxy() -> bool:
    """Whether what LD_PRELOAD names is a proxy, and in the process."""
    entries = os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":")
    proxies = [entry for entry in entries if entry.endswith("/libcuda.so.1")]
    if not proxies:
        return False
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
        maps = stream.read()
    return any(os.path.realpath(proxy) in maps for proxy in proxies)


def _after_torch(torch: Any) -> None:
    _penstock("penstock.allocator.run_hook").install()


def _after_cupy(cupy: Any) -> None:
    cupy.cuda.set_allocator(None)


_AFTER: dict[str, Callable[[Any], None]] = {"torch": _after_torch, "cupy": _after_cupy}


def _penstock(name: str) -> Any:
    """A module of Penstock's, also where the program's Python has not got it installed."""
    import importlib
    import importlib.util

    if importlib.util.find_spec("penstock") is None:
        spec: Any = importlib.util.spec_from_file_location(
            "penstock", f"{_PACKAGE}/__init__.py", submodule_search_locations=[_PACKAGE]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["penstock"] = module
        spec.loader.exec_module(module)
    return importlib.import_module(name)


class _Loader:
    """A module's own loader, and what is to be done when it is done."""

    def __init__(self, own: Any, then: Callable[[Any], None]) -> None:
        self._own = own
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._own.create_module(spec)
        return made

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        try:
            self._then(module)
        except Exception as error:
            print(f"penstock: {module.__name__} keeps its own allocator: {error}", file=sys.stderr)


class _Finder:
    """Finds what others find, and puts the loader above around it."""

    def __init__(self) -> None:
        self._waiting = dict(_AFTER)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._waiting:
            return None
        then = self._waiting.pop(name)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                own: Any = spec.loader
                spec.loader = own if own is None else _wrapped(own, then)
                return spec
        self._waiting[name] = then
        return None


def _wrapped(own: Any, then: Callable[[Any], None]) -> Any:
    return _Loader(own, then)


if _has_proxy():
    sys.meta_path.insert(0, _Finder())
_run_other()
