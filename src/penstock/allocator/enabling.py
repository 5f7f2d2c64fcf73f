# SPDX-License-Identifier: Apache-2.0
"""penstock.enable(): a caching allocator for PyTorch that joins scattered free memory.

Free device memory that does not lie side by side is mapped behind new addresses, so that what is
reserved stays close to what is requested. torch calls the native library directly; Python is not
on the way of an allocation.

Thread rule: enable() from any thread, before the first use of CUDA.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace
from typing import Any

import torch

from penstock import config
from penstock.errors import EnvironmentProblem, UsageError
from penstock.native import torch_allocator
from penstock.units import parse_size

from . import compile, patch, pool

log = logging.getLogger("penstock.allocator")

MODES = ("allocator", "mempool")
# torch's own variables, which configure the allocator that gives way.
_TORCH_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_WHOLE = 10**15


@dataclass(frozen=True)
class _Enabled:
    """What a first call was told, to compare a second one with."""

    mode: str
    stitch: bool
    options: dict[str, Any]


_lock = threading.Lock()
_enabled: _Enabled | None = None
# Whether that was penstock run's doing, before the program could say anything.
_unasked = False


def enable(
    gpu_memory: int | str | None = None,
    *,
    mode: str = "allocator",
    stitch: bool | None = None,
    stitch_limit: int | str | None = None,
    stitch_when: str | None = None,
    reuse_limit: float | str | None = None,
    range_limit: int | str | None = None,
    grow_exactly: bool | None = None,
    chunk: int | str | None = None,
    growth: int | str | None = None,
) -> bool:
    """Let Penstock allocate PyTorch's device memory; call it before anything else uses CUDA.

    What is left out is decided by ``PENSTOCK_*`` variables (and GMLake's), then by penstock.toml,
    then by the default. A second call that says the same does nothing.

    Args:
        gpu_memory: The most device memory to hold: bytes, "8GiB" or "80%"; default all.
        mode: "allocator" takes the place of torch's own; "mempool" puts the current thread's
            allocations on the current device into a torch.cuda.MemPool, for what needs torch's
            own allocator (CUDA graph trees, tensors shared between processes).
        stitch: False leaves torch's own caching allocator in place (GMLake: vmmDefragment).
        stitch_limit: Bytes below which a request is never stitched (fragLimit).
        stitch_when: "first", "when-full", "after-release" or "never" (defragLevel).
        reuse_limit: A kept range up to so many times a request may serve it (reuseLimit).
        range_limit: Bytes of addresses that kept ranges may span (autoGC).
        grow_exactly: Join old chunks and new ones rather than take all anew (reAlloc).
        chunk: The unit of device memory; a multiple of 2 MiB.
        growth: The least to map at once while memory in use grows.

    Returns:
        Whether Penstock allocates now; False where `stitch` is off.

    Raises:
        UsageError: If an argument makes no sense, if CUDA is in use already, or if an earlier
            call said something else.
        EnvironmentProblem: If torch cannot use a CUDA device here.
    """
    arguments = {
        "gpu_memory": gpu_memory,
        "allocator_stitch": stitch,
        "allocator_stitch_limit": stitch_limit,
        "allocator_stitch_when": stitch_when,
        "allocator_reuse_limit": reuse_limit,
        "allocator_range_limit": range_limit,
        "allocator_grow_exactly": grow_exactly,
        "allocator_chunk": chunk,
        "allocator_growth": growth,
    }
    if mode not in MODES:
        raise UsageError(f"mode '{mode}' is unknown", remedy=" or ".join(MODES))
    wanted = _wanted(mode, config.load(arguments=arguments))
    with _lock:
        return _enable(wanted)


def enable_unasked(settings: config.Settings) -> bool:
    """The same for a program that did not call it, without a look at the device.

    Asking whether there is one may begin CUDA, which would end a later fork's use of it.
    """
    global _unasked
    wanted = _wanted("allocator", settings)
    with _lock:
        _unasked = _enabled is None
        return _enable(wanted, ask_device=False)


def mem_pool() -> torch.cuda.MemPool:
    """A torch.cuda.MemPool whose memory comes from Penstock, to be used with use_mem_pool().

    Call ``penstock.enable(mode="mempool")`` first if options are to be set; without it the
    defaults hold. The limits of a pool are torch's: docs/allocator.md lists them.

    Raises:
        UsageError: If Penstock has taken the place of torch's allocator, which has the pools.
        EnvironmentProblem: If torch cannot use a CUDA device here.
    """
    global _enabled
    _need_cuda()
    with _lock:
        if _enabled is None:
            wanted = _wanted("mempool", config.load())
            torch_allocator.configure(**wanted.options)
            _enabled = replace(wanted, stitch=True)
    return pool.make_pool()


def _wanted(mode: str, settings: config.Settings) -> _Enabled:
    options = {**config.allocator_options(settings), **budget_options(settings.gpu_memory)}
    return _Enabled(mode, settings.allocator_stitch, options)


def _enable(wanted: _Enabled, *, ask_device: bool = True) -> bool:
    global _enabled
    if _enabled is not None:
        if _enabled != wanted and _unasked:
            log.warning("penstock.enable() changes nothing: penstock run has decided")
        elif _enabled != wanted:
            raise UsageError(
                f"penstock.enable() was called with other options before: {_difference(wanted)}",
                remedy="call it once, or with the same options",
            )
        return wanted.stitch
    if ask_device:
        _need_cuda()
    if not wanted.stitch:
        log.warning("allocator.stitch is off: torch's own caching allocator stays in place")
        _enabled = wanted
        return False
    if wanted.mode == "mempool":
        torch_allocator.configure(**wanted.options)
        pool.enter_for_good(pool.make_pool())
    else:
        _replace(wanted.options)
    _enabled = wanted
    return True


def _replace(options: dict[str, Any]) -> None:
    """Put our entry points in the place of torch's allocator."""
    if torch.cuda.is_initialized():
        raise _too_late()
    ignored = [name for name in _TORCH_VARIABLES if os.environ.get(name)]
    kind = torch_allocator.configure(**options)
    addresses = map(torch_allocator.entry_point, torch_allocator.CONSTRUCTOR)
    allocator = torch._C._cuda_customAllocator(*addresses)
    for setter, name in torch_allocator.SETTERS.items():
        getattr(allocator, setter)(torch_allocator.entry_point(name))
    try:
        torch._C._cuda_changeCurrentAllocator(allocator)
    except RuntimeError as error:
        raise _too_late() from error
    patch.install()
    compile.without_graph_trees()
    if kind == "RuntimeError":
        log.warning(
            "this torch (%s) does not export what its OutOfMemoryError is made of: running out of "
            "memory raises RuntimeError('CUDA out of memory. ...')",
            torch.__version__,
        )
    for name in ignored:
        log.warning("%s has no effect: it configures torch's own allocator", name)


def _too_late() -> UsageError:
    return UsageError(
        "CUDA has been used already, with torch's own allocator, which cannot be replaced then",
        remedy="call penstock.enable() right after the imports, before anything touches the GPU",
    )


def _need_cuda() -> None:
    if torch.version.cuda is None:
        raise EnvironmentProblem(
            f"penstock.enable() needs a CUDA build of torch, and this is {torch.__version__}",
            remedy="pip install torch on a machine with an NVIDIA GPU",
        )
    if torch.cuda.device_count() == 0:
        raise EnvironmentProblem(
            "penstock.enable() needs a CUDA device, and torch sees none",
            remedy="penstock doctor",
        )


def budget_options(gpu_memory: str) -> dict[str, Any]:
    """The budget as bytes, or as a share of each device's memory."""
    if gpu_memory == "auto":
        return {}
    if gpu_memory.endswith("%"):
        return {"budget_share": parse_size(gpu_memory, total=_WHOLE) / _WHOLE}
    return {"budget": parse_size(gpu_memory, name="gpu_memory")}


def _difference(wanted: _Enabled) -> str:
    assert _enabled is not None
    before = {"mode": _enabled.mode, "stitch": _enabled.stitch, **_enabled.options}
    now = {"mode": wanted.mode, "stitch": wanted.stitch, **wanted.options}
    names = sorted(set(before) | set(now))
    changed = [name for name in names if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name)}, now {now.get(name)}" for name in changed)
