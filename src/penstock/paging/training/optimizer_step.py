# SPDX-License-Identifier: Apache-2.0
"""optimizer.step() of the attached optimizer, and of others that reach for the model's parameters.

The attached optimizer's step is one that pages, in the place where its own would have been: after
every hook of the user's before the step, before every hook behind it, with the closure called where
torch calls it. Another optimizer's runs as it is, with the blocks of its parameters brought in.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


class PagedStep:
    """Takes the place of one optimizer's step().

    Args:
        optimizer: The optimizer.
        step: Called for the update, with step()'s other keyword arguments.
        stepped: Called when the update is over.
    """

    def __init__(
        self, optimizer: Optimizer, step: Callable[..., None], stepped: Callable[[], None]
    ) -> None:
        self._optimizer = optimizer
        self._step = step
        self._stepped = stepped
        self._before: Any = optimizer.__dict__.get("step")
        self._attached = True
        self._installed = types.MethodType(self._make(), optimizer)
        optimizer.step = self._installed  # type: ignore[method-assign]

    def _make(self) -> Any:
        def step(optimizer: Any, closure: Callable[[], Any] | None = None, **more: Any) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._step(**more)
            self._stepped()
            return loss

        hooked: Any = Optimizer.profile_hook_step(step)
        scheduled = hasattr(self._before, "_wrapped_by_lr_sched")

        def either(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._attached:  # a scheduler has wrapped this, and keeps it beyond detach()
                return type(optimizer).step(optimizer, *args, **kwargs)
            if scheduled:
                optimizer._opt_called = True  # what a scheduler's own wrapper would note
            return hooked(optimizer, *args, **kwargs)

        # In the middle of what is compiled weights and state come and go as elsewhere.
        made: Any = torch.compiler.disable(either)
        if scheduled:
            made._wrapped_by_lr_sched = True
        return made

    def remove(self) -> None:
        """The optimizer's own step again."""
        self._attached = False
        if self._optimizer.__dict__.get("step") is self._installed:
            del self._optimizer.step
            if self._before is not None:
                self._optimizer.step = self._before  # type: ignore[method-assign]


class OtherOptimizers:
    """Brings blocks in around the steps of other optimizers.

    Args:
        attached: The optimizer that is paged.
        touching: For parameters: around work that reads and writes those of the model's blocks
            among them; None if there are none.
    """

    def __init__(
        self,
        attached: Optimizer,
        touching: Callable[[list[torch.Tensor]], AbstractContextManager[None] | None],
    ) -> None:
        self._attached = attached
        self._touching = touching
        self._stack = ExitStack()
        self._handles = [
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._before(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._after(optimizer)),
        ]

    def _before(self, optimizer: Optimizer) -> None:
        self._stack.close()  # of one that failed
        if optimizer is not self._attached:
            found = self._touching([p for g in optimizer.param_groups for p in g["params"]])
            if found is not None:
                self._stack.enter_context(found)

    def _after(self, optimizer: Optimizer) -> None:
        if optimizer is not self._attached:
            self._stack.close()

    def remove(self) -> None:
        """Take the hooks off."""
        self._stack.close()
        for handle in self._handles:
            handle.remove()
