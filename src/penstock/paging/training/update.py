# SPDX-License-Identifier: Apache-2.0
"""The optimizer's step for some of its parameters, by the optimizer itself.

Its param_groups are narrowed for the call, so that any torch optimizer does it, with the
hyper-parameters that the groups have at that moment: schedulers work. What is asked of the
optimizer is that the update of a parameter needs that parameter, its gradient and its state alone,
and what is in its group.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from penstock.errors import UsageError

from .groups import Groups
from .probe import check_steps_in_pieces, is_torchs

# What they do to an element of a parameter needs that element, of gradient and state too, alone.
ELEMENTWISE = frozenset(
    getattr(torch.optim, name)
    for name in (
        "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop",
        "Rprop", "SGD",
    )
)  # fmt: skip


class Update:
    """Steps an optimizer for the parameters named.

    Args:
        optimizer: Any torch optimizer but those whose update looks at all parameters at once.

    Attributes:
        optimizer: It.
        groups: What is in its groups beside parameters.
        begun: Whether this step has updated anything.

    Raises:
        UsageError: If it is one of those, or not an optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        # Wrappers may be of that class, and never have been made as one.
        made = hasattr(optimizer, "_optimizer_state_dict_post_hooks")
        if not (isinstance(optimizer, torch.optim.Optimizer) and made):
            raise UsageError(
                f"{type(optimizer).__name__} is not a torch.optim.Optimizer",
                remedy="hand over the optimizer itself, not a wrapper around it",
            )
        self.optimizer = optimizer
        step: Any = type(optimizer).step
        # Without the hooks and the profiler's range that the public method has around it.
        self._step = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
        check_steps_in_pieces(optimizer, self._step)
        # Another's may be compiled, as torchao's are, which no mode that looks on may see.
        self._unseen = nullcontext if is_torchs(self._step) else _disable_current_modes
        self.groups = Groups(optimizer)
        # torch's own write nothing there.
        self._piece = nullcontext if is_torchs(self._step) else self.groups.piece
        self.begun = False
        self._group_of: dict[int, int] = {}

    def parameters(self) -> list[nn.Parameter]:
        """All that the optimizer updates, in its order."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def trained(self) -> tuple[int, ...]:
        """The identities (id()) of those that are updated now: not frozen, or with a gradient."""
        return tuple(id(p) for p in self.parameters() if p.requires_grad or p.grad is not None)

    def regroup(self) -> None:
        """The groups are not those of before."""
        self._group_of = self.grouped()

    def grouped(self) -> dict[int, int]:
        """By the identity (id()) of each parameter, the number of the group that has it now."""
        groups = self.optimizer.param_groups
        return {id(p): n for n, group in enumerate(groups) for p in group["params"]}

    def group_of(self, parameter: torch.Tensor) -> int:
        """The number of its param_group."""
        if id(parameter) not in self._group_of:
            self.regroup()
        return self._group_of[id(parameter)]

    def __call__(self, parameters: Iterable[nn.Parameter], **more: Any) -> None:
        """One step for these, which have gradients.

        Args:
            parameters: Them.
            more: Further keyword arguments of the optimizer's step().
        """
        self._narrowed(((p, p) for p in parameters), more)

    def _narrowed(
        self, parts: Iterable[tuple[nn.Parameter, nn.Parameter]], more: dict[str, Any]
    ) -> None:
        """Step parts of parameters, each given with that which it is of, in this one's group."""
        if not self.begun:  # the loop may have moved some since the last step
            self.regroup()
        groups = self.optimizer.param_groups
        chosen: list[list[nn.Parameter]] = [[] for _ in groups]
        for part, parameter in parts:
            chosen[self.group_of(parameter)].append(part)
        whole = [group["params"] for group in groups]
        self.begun = True
        try:
            for group, some in zip(groups, chosen, strict=True):
                group["params"] = some
            with self._unseen(), self._piece():
                self._step(self.optimizer, **more)
        finally:
            for group, every in zip(groups, whole, strict=True):
                group["params"] = every

    def step_ends(self) -> None:
        """What is updated next is another step."""
        self.groups.step_ends()
        self.begun = False

    # ---- By rows ---------------------------------------------------------------------------

    @property
    def elementwise(self) -> bool:
        """Whether rows of a parameter can be updated one by one."""
        return type(self.optimizer) in ELEMENTWISE

    def state_of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """The optimizer's state of a parameter; empty before the first step."""
        state: dict[str, Any] = self.optimizer.state.get(parameter, {})
        return state

    def rows(self, parameter: nn.Parameter, first: int, last: int, **more: Any) -> dict[str, Any]:
        """One step for rows of a parameter that has state.

        Args:
            parameter: With a gradient, a plain tensor.
            first: The first row.
            last: That behind the last one.
            more: Further keyword arguments of the optimizer's step().

        Returns:
            State that all rows share, such as the number of steps, as the next one is to find it
            once all rows have been updated.
        """
        grad, shape = parameter.grad, parameter.shape
        assert grad is not None
        part = nn.Parameter(parameter.detach()[first:last])
        part.grad = grad[first:last]
        own: dict[str, Any] = {}
        for key, value in self.state_of(parameter).items():
            if isinstance(value, torch.Tensor):
                own[key] = value[first:last] if value.shape == shape else value.clone()
            else:
                own[key] = value
        self.optimizer.state[part] = own
        try:
            self._narrowed([(part, parameter)], more)
        finally:
            own = self.optimizer.state.pop(part)
        by_rows = part.shape
        return {
            key: value
            for key, value in own.items()
            if not isinstance(value, torch.Tensor) or value.shape != by_rows
        }

    def replace(self, before: dict[int, nn.Parameter]) -> None:
        """Parameters that have been made anew take the places of the old ones.

        Args:
            before: By the identity of what they replace.
        """
        for group in self.optimizer.param_groups:
            group["params"] = [before.get(id(p), p) for p in group["params"]]
        self.regroup()
