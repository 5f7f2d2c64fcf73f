# SPDX-License-Identifier: Apache-2.0
"""Checks of torch by its files alone: it is not imported, so a broken one can be looked at too."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import runpy
from pathlib import Path
from typing import Any

from .result import Check

OLDEST = (2, 11)
WHY = "Models are torch modules; doctor, estimate and config work without it."
WHY_CUDA = "torch has to be built for CUDA, and for one that the driver knows, to use the GPU."
WHY_ALLOCATOR = "torch's own allocator shares the GPU with Penstock, for activations."
INSTALL = "pip install 'penstock[torch]'"
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def torch() -> Check:
    """Which torch there is."""
    version = torch_version()
    if version is None:
        return Check("torch", "skip", "not installed", WHY, INSTALL)
    match = re.match(r"(\d+)\.(\d+)", version)
    old = match is None or tuple(map(int, match.groups())) < OLDEST
    oldest = ".".join(map(str, OLDEST))
    remedy = f"pip install 'torch>={oldest}'" if old else ""
    return Check("torch", "warn" if old else "ok", version, WHY, remedy)


def torch_version() -> str | None:
    """The installed version of torch, or None."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda(*, driver: tuple[int, int] | None) -> Check:
    """Whether torch and the driver fit each other.

    Args:
        driver: The CUDA version that the driver offers; None where there is no GPU.
    """
    if torch_version() is None:
        return Check("torch-cuda", "skip", "torch is not installed", WHY_CUDA, INSTALL)
    built_for = torch_built_for()
    if driver is None:
        observed = f"built for CUDA {built_for}" if built_for else "built for the CPU"
        return Check("torch-cuda", "ok", f"{observed}; no GPU to use", WHY_CUDA)
    if built_for is None:
        remedy = "install a CUDA build of torch"
        return Check("torch-cuda", "warn", "built for the CPU", WHY_CUDA, remedy)
    # Within a major version an older driver runs newer code; across them it does not.
    too_new = int(built_for.split(".")[0]) > driver[0]
    observed = f"built for CUDA {built_for}, the driver offers {driver[0]}.{driver[1]}"
    remedy = "a newer driver, or torch for an older CUDA" if too_new else ""
    return Check("torch-cuda", "fail" if too_new else "ok", observed, WHY_CUDA, remedy)


def torch_built_for() -> str | None:
    """The CUDA version torch was built for, from its version file; None for a CPU build."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        found: Any = runpy.run_path(str(Path(spec.origin).parent / "version.py")).get("cuda")
    except Exception:  # whatever is wrong with that file, it says nothing about CUDA
        return None
    return str(found) if found else None


def allocator() -> Check:
    """Whether torch's allocator is set up in a way that disturbs a budget."""
    settings = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    if len(set(settings.values())) > 1:
        observed = ", ".join(f"{name}={value}" for name, value in settings.items())
        remedy = f"unset {VARIABLES[1]}, the older name"
        return Check("allocator", "warn", f"two settings: {observed}", WHY_ALLOCATOR, remedy)
    text = next(iter(settings.values()), "")
    if re.search(r"backend\s*:\s*cudaMallocAsync", text):
        return Check(
            "allocator",
            "warn",
            text,
            "The driver's pool keeps freed memory that a budget does not see.",
            f"take backend:cudaMallocAsync out of {next(iter(settings))}",
        )
    return Check("allocator", "ok", text or "torch's defaults", WHY_ALLOCATOR)
