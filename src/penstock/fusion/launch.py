# SPDX-License-Identifier: Apache-2.0
"""How a Triton kernel is started: directly, or in a way that torch.compile and fake tensors see.

One thread at a time, as with any nn.Module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import or_ as operator_or
from typing import Any

import torch
from torch import Tensor

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


class Start:
    """A kernel with all fixed but its tensors, which are of one layout each time.

    Triton looks at each argument of each call to find the kernel that it compiled for such ones:
    10 us of the host, more than all else that an op does. A `Start` keeps what the first call
    found and hands the next ones addresses.

    Args:
        kernel: A function under ``triton.jit``: pointers, then numbers, then constexprs.
        programs: Its grid.
        numbers: What follows the pointers.
        constants: Its constexprs, in its order.
        device: Where its tensors are.
        warps: Of a program.
        stages: Loads of a loop on their way at a time.
        registers: Of a thread, at most; None leaves it to the compiler, as under torch.compile.

    Attributes:
        kernel: As given.
        constants: As given.
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        numbers: tuple[float, ...],
        constants: dict[str, Any],
        *,
        device: torch.device,
        warps: int,
        stages: int = 3,
        registers: int | None = None,
    ) -> None:
        self.kernel, self._programs, self._numbers = kernel, programs, numbers
        self.constants, self._device = constants, device
        self._options = {"num_warps": warps, "num_stages": stages}
        self._limits = {} if registers is None else {"maxnreg": registers}
        self._fixed = (*numbers, *constants.values())
        self._ready: Callable[..., Any] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        """Start it on the current stream of the tensors' device."""
        index = self._device.index
        if index is not None and index != torch.cuda.current_device():
            with torch.cuda.device(index):
                return self(*tensors)
        addresses = [tensor.data_ptr() for tensor in tensors]
        # What was compiled may load 16 bytes at a time, because the first tensors allowed it.
        aligned = not functools.reduce(operator_or, addresses) & 15
        if aligned and self._ready is not None:
            self._ready(*addresses, *self._fixed)
            return None
        if kernels.interpreted():
            return self.interpret(tensors)
        compiled = self.kernel[(self._programs,)](
            *tensors, *self._numbers, **self.constants, **self._options, **self._limits
        )
        if aligned:
            self._ready = compiled[(self._programs, 1, 1)]
        return None

    def traced(self, *tensors: Tensor) -> None:
        """The same in the body of an `operator`, which torch may be tracing."""
        if kernels.interpreted():
            return self.interpret(tensors)
        wrapped = torch.library.wrap_triton(self.kernel)[(self._programs,)]
        wrapped(*tensors, *self._numbers, **self.constants, **self._options)
        return None

    def interpret(self, tensors: tuple[Tensor, ...]) -> None:
        """The same in triton's interpreter."""
        # The interpreter has no options, and that of triton 3.6 cannot take an int of its own as
        # the end of a loop where numpy is 2.4 or newer.
        import numpy

        names = self.kernel.arg_names[len(tensors) :]
        numbers: dict[str, Any] = dict(zip(names, self._numbers, strict=False))
        if "steps" in numbers:
            numbers["steps"] = numpy.int64(numbers["steps"])
        self.kernel[(self._programs,)](*tensors, **numbers, **self.constants)


@functools.cache
def _processors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def device_programs(device: torch.device, *, per_processor: int) -> int:
    """How many programs fill a device; on the CPU as many as make every path run."""
    if device.type != "cuda":
        return 2 * per_processor
    index = torch.cuda.current_device() if device.index is None else device.index
    return _processors(index) * per_processor
