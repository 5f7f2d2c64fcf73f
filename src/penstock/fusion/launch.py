# SPDX-License-Identifier: Apache-2.0
"""How a Triton kernel is started: directly, or in a way that torch.compile and fake tensors see.

One thread at a time, as with any nn.Module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import kernels


def seen_by_torch() -> bool:
    """Whether something has to see operators: a compiler, or a mode that watches each of them."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a function an operator ``penstock::name`` that mutates nothing.

    With triton a compiler sees the kernels in it; without, torch has a complaint for each such
    operator, so it is one that fake tensors run on the function itself, which is plain torch then.
    """
    full = f"penstock::{name}"
    if kernels.installed():
        return torch.library.triton_op(full, mutates_args=())

    def register(function: Callable[..., Any]) -> Any:
        made = torch.library.custom_op(full, function, mutates_args=())
        made.register_fake(function)
        return made

    return register


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, wrapped: bool, **meta: Any) -> None:
    """Start a kernel on the stream of its arguments' device.

    Args:
        kernel: A function under ``triton.jit``.
        grid: Programs in each dimension.
        arguments: Positional arguments of the kernel.
        wrapped: Whether this is the body of an `operator`, which torch may be tracing; elsewhere
            the wrapper would go through torch's tracing for nothing.
        meta: Its constexprs, and num_warps or num_stages.
    """
    if kernels.interpreted():
        import numpy

        # The interpreter has no launch options, and that of triton 3.6 cannot take a scalar of
        # its own as the end of a loop where numpy is 2.4 or newer.
        meta = {k: v for k, v in meta.items() if k not in ("num_warps", "num_stages")}
        if "steps" in meta:
            meta["steps"] = numpy.int64(meta["steps"])
        kernel[grid](*arguments, **meta)
    elif wrapped:
        torch.library.wrap_triton(kernel)[grid](*arguments, **meta)
    else:
        kernel[grid](*arguments, **meta)


@functools.cache
def _processors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def device_programs(device: torch.device, *, per_processor: int) -> int:
    """How many programs fill a device; on the CPU as many as make every path run."""
    if device.type != "cuda":
        return 2 * per_processor
    index = torch.cuda.current_device() if device.index is None else device.index
    return _processors(index) * per_processor
