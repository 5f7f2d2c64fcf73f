# SPDX-License-Identifier: Apache-2.0
"""What torch asks the current allocator and its pluggable class does not answer.

The functions replaced are those of ``torch._C``, one level below the public ones, so that a name
that somebody imported earlier goes on to work. ``torch.accelerator`` would reach torch's own
allocator, which holds nothing, and succeed; it is told the truth as well. What cannot be had says
so when it is used, with the alternative.

Thread rule: `install` once; what it installs may be called from any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from penstock.errors import UsageError
from penstock.native import torch_allocator
from penstock.native.torch_allocator import TorchAllocator

from . import stats
from .history import History

log = logging.getLogger("penstock.allocator")


def install() -> None:
    """Replace them; a name that this torch does not have is left alone."""
    history = History()
    functions: dict[str, Callable[..., Any]] = {
        "_cuda_memoryStats": stats.memory_stats,
        "_cuda_resetPeakMemoryStats": _reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": _reset_accumulated,
        "_cuda_getMemoryFraction": stats.memory_fraction,
        "_cuda_memorySnapshot": history.snapshot,
        "_cuda_record_memory_history": history.record,
        "_cuda_record_memory_history_legacy": history.record_legacy,
        "_cuda_allocationTraceback": history.traceback_of,
        "_cuda_attach_out_of_memory_observer": _attach_observer,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_accelerator_emptyCache": torch_allocator.empty_cache,
        "_accelerator_getDeviceStats": stats.memory_stats,
        "_accelerator_resetPeakStats": _reset_peaks,
        "_accelerator_resetAccumulatedStats": _reset_accumulated,
        "_accelerator_setAllocatorSettings": _ignore_settings,
        "_cuda_getCheckpointState": _refusal(
            "CUDA graph trees save and restore the allocator's state, which Penstock does not",
            "torch._inductor.config.triton.cudagraph_trees = False, "
            "or penstock.enable(mode='mempool')",
        ),
    }
    for name, function in functions.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
    _refuse_mem_pools()
    _refuse_sharing()
    _keep_cudnn_from_searching()


def _refusal(what: str, remedy: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedUnderPenstock(what, remedy=remedy)

    return refuse


class UnsupportedUnderPenstock(UsageError, RuntimeError):
    """Something that torch's own allocator does and Penstock's does not.

    A RuntimeError too, since that is what torch raises where an allocator lacks something.
    """


def _reset_peaks(device: int) -> None:
    TorchAllocator(device).reset_peaks()


def _reset_accumulated(device: int) -> None:
    TorchAllocator(device).reset_accumulated()


def _attach_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Call `observer(device, bytes, device_total, device_free)` before each such error."""
    _observers.append(observer)

    def tell_all(device: int, size: int, total: int, free: int) -> None:
        for each in _observers:
            each(device, size, total, free)

    torch_allocator.observe_out_of_memory(tell_all)


_observers: list[Callable[[int, int, int, int], object]] = []


def _ignore_settings(settings: str) -> None:
    log.warning(
        "allocator settings '%s' have no effect: Penstock allocates; "
        "its own options are arguments of penstock.enable()",
        settings,
    )


def _refuse_mem_pools() -> None:
    """torch.cuda.MemPool is part of torch's own allocator."""
    pool_class: Any = torch.cuda.MemPool
    pool_class.__init__ = _refusal(
        "torch.cuda.MemPool needs torch's own allocator, and Penstock has taken its place",
        "penstock.enable(mode='mempool'), which leaves it there",
    )


def _refuse_sharing() -> None:
    """Memory that is mapped chunk by chunk has no handle of CUDA's interprocess kind."""
    storage_class: Any = torch.UntypedStorage
    storage_class._share_cuda_ = _refusal(
        "a CUDA tensor in Penstock's memory cannot be shared with another process",
        "send tensor.cpu(), or penstock.enable(mode='mempool') and make what is shared outside "
        "the pool",
    )


def _keep_cudnn_from_searching() -> None:
    """cudnn.benchmark asks for the largest free block, which torch refuses to other allocators.

    Every convolution would raise; without the search cuDNN's own choice of algorithm serves.
    """
    switch: Any = torch._C._set_cudnn_benchmark
    warned = False

    def leave_off(wanted: bool) -> None:
        nonlocal warned
        if wanted and not warned:
            warned = True
            log.warning(
                "torch.backends.cudnn.benchmark stays off: it asks for the free blocks of torch's "
                "own allocator; penstock.enable(mode='mempool') leaves that in place"
            )
        switch(False)

    setattr(torch._C, switch.__name__, leave_off)
    vars(torch.backends.cudnn.CudnnModule)["benchmark"].setter = leave_off
    if torch.backends.cudnn.benchmark:
        leave_off(True)
