# SPDX-License-Identifier: Apache-2.0
"""A step of fixed shapes as one CUDA graph: the host starts one thing instead of hundreds.

Where a GPU does a layer in less time than the host takes to start its kernels, and an op of Python
costs more than one of C++, the host sets the pace. A captured step costs the host the same
whatever it is made of, and the GPU sets it: a forward pass, or forward and backward.

A graph holds addresses. What the step reads and writes beside its inputs (parameters, buffers,
gradients) must stay where it is, so nothing of it may be paged. Results and gradients are the same
tensors after each replay, with new values. Dropout draws anew in each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from penstock.errors import FailedError, UsageError

T = TypeVar("T")
REHEARSALS = 2


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for all: cuBLAS keeps a workspace, 32 MiB on an H200, for each stream it was used on."""
    return torch.cuda.Stream(device)


def record(step: Callable[[], T], *, pool: Any = None) -> tuple[Any, T]:
    """A graph of a step, and what it returned, which a replay fills anew.

    The step is run aside `REHEARSALS` times before, so that libraries have their workspaces and
    kernels are compiled; recording it runs nothing.

    Args:
        step: What is recorded, on the current device.
        pool: Memory that graphs share of which nobody wants the results, by
            `torch.cuda.graph_pool_handle`; None gives it memory of its own.

    Raises:
        FailedError: If something in the step cannot be part of a graph.
    """
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(REHEARSALS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        # What other threads ask of the driver meanwhile, such as free memory, is their own affair.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            return graph, step()
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        raise FailedError(
            f"the step cannot be captured as a CUDA graph: {said}",
            remedy="nothing in it may wait for the GPU, as .item() does, or be paged",
        ) from error


class Captured(Generic[T]):
    """A function of tensors of fixed shapes, replayed as a CUDA graph.

        step = Captured(forward_and_backward, tokens)     # runs it twice, then records it
        loss = step(tokens)                               # one launch; the gradients are new

    In training the step itself sets gradients to None before backward: a replay then writes them,
    and adds to none of before. An optimizer belongs behind the step, for the rehearsals are steps
    as well. Where the first input is not on a GPU, a call is the function's. One thread at a time.

    Args:
        function: Takes the inputs, returns anything.
        inputs: Tensors of the shapes and dtypes that every call will have, one at least; they are
            copied to where the graph reads them.

    Raises:
        UsageError: If there is no input, or one that requires a gradient.
        FailedError: If something in the function cannot be part of a graph.
    """

    def __init__(self, function: Callable[..., T], *inputs: Tensor) -> None:
        if not inputs:
            raise UsageError("a captured step without inputs", remedy="one tensor, what varies")
        if any(tensor.requires_grad for tensor in inputs):
            raise UsageError(
                "an input of a captured step that requires a gradient, which a replay would write "
                "to a copy of it",
                remedy="a parameter, which the step reads where it is",
            )
        self._function = function
        self._inputs = tuple(tensor.clone() for tensor in inputs)
        self._graph: Any = None
        if inputs[0].is_cuda:
            with torch.cuda.device(inputs[0].device):
                self._graph, self._result = record(lambda: function(*self._inputs))

    def __call__(self, *inputs: Tensor) -> T:
        """What the function returns for these inputs; overwritten by the next call.

        Raises:
            UsageError: If an input is unlike those that the step was captured with.
        """
        if len(inputs) != len(self._inputs):
            raise UsageError(
                f"{len(inputs)} inputs for a step of {len(self._inputs)}", remedy="as many"
            )
        for held, given in zip(self._inputs, inputs, strict=True):
            if (held.shape, held.dtype) != (given.shape, given.dtype):
                raise UsageError(
                    f"an input of {tuple(given.shape)}, {given.dtype}, for a step that was "
                    f"captured with {tuple(held.shape)}, {held.dtype}",
                    remedy="a Captured for each shape",
                )
        if self._graph is None:
            return self._function(*inputs)
        with torch.no_grad():  # an input may have a history here
            for held, given in zip(self._inputs, inputs, strict=True):
                held.copy_(given)
        self._graph.replay()
        return self._result
