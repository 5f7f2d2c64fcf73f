# SPDX-License-Identifier: Apache-2.0
"""torch.compile(mode="reduce-overhead") under Penstock: graphs without graph trees.

CUDA graph trees save and restore the state of torch's own allocator. With them switched off,
inductor captures graphs through the ordinary hooks of private pools, which Penstock has.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

log = logging.getLogger("penstock.allocator")

CONFIG = "torch._inductor.config"


def without_graph_trees() -> None:
    """Switch graph trees off, at once or when inductor's configuration is imported.

    Importing it here would cost every program that does not compile anything.
    """
    loaded: Any = sys.modules.get(CONFIG)
    if loaded is not None:
        _switch_off(loaded)
    else:
        sys.meta_path.insert(0, _OnImport())


def _switch_off(module: Any) -> None:
    if getattr(module.triton, "cudagraph_trees", False):
        module.triton.cudagraph_trees = False
        log.info(
            "torch._inductor.config.triton.cudagraph_trees is off: Penstock does not save and "
            "restore an allocator's state; graphs are captured without trees"
        )


class _OnImport(importlib.abc.MetaPathFinder):
    """Finds the configuration as everybody does, and switches trees off once it has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != CONFIG:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_switch_off(module: ModuleType) -> None:
            run(module)
            _switch_off(module)

        loader.exec_module = run_and_switch_off
        return spec
