# SPDX-License-Identifier: Apache-2.0
"""Gradients that must outlive their backward pass: in blocks too, and nowhere else.

Accumulation over several backward passes and clipping by the norm of all gradients need every
gradient before the first update. A unit's gradients move into its own range as soon as they are
whole, come back for its update, and are forgotten then: what is forgotten is neither copied out nor
brought in again. Gradients of parameters that always stay on the device stay in `.grad`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from penstock.native import Pager

from ..dlpack import bytes_at, view_as
from ..layout import align
from .units import Unit
from .uses import TrainingUses


@dataclass(slots=True, eq=False)
class _Held:
    """The gradients of one unit."""

    address: int
    nbytes: int
    use: int
    views: dict[int, torch.Tensor]
    filled: set[int] = field(default_factory=set)


class HeldGradients:
    """The gradients of one model that are kept for later.

    Args:
        uses: Declares uses of what is made here.
        pager: Where ranges are made.
        device: Of the parameters.
        check_host: Called with the bytes of page-locked memory about to be asked for.
        norms: Whether to keep the norm of each gradient.
    """

    def __init__(
        self,
        uses: TrainingUses,
        pager: Pager,
        device: torch.device,
        check_host: Callable[[int], None],
        *,
        norms: bool,
    ) -> None:
        self._uses = uses
        self._pager = pager
        self._device = device
        self._check_host = check_host
        self._keep_norms = norms
        self._held: dict[Unit, _Held] = {}
        self._norms: dict[int, torch.Tensor] = {}

    def __contains__(self, unit: Unit) -> bool:
        """Whether gradients of the unit are held."""
        return unit in self._held and bool(self._held[unit].filled)

    def hold(self, unit: Unit) -> None:
        """Add the unit's gradients to what is held of them, and free them."""
        held = self._held.get(unit) or self._make(unit)
        self._uses.begin(held.use)
        try:
            for parameter in unit.parameters:
                if parameter.grad is None:
                    continue
                view = held.views[id(parameter)]
                if id(parameter) in held.filled:
                    view.add_(parameter.grad)
                else:
                    view.copy_(parameter.grad)
                    held.filled.add(id(parameter))
                parameter.grad = None
                if self._keep_norms:
                    self._norms[id(parameter)] = torch.linalg.vector_norm(view)
        finally:
            self._uses.end(held.use)

    @contextmanager
    def given_back(self, unit: Unit) -> Iterator[None]:
        """Around the unit's update: what is held of its gradients is in `.grad`, then gone."""
        if unit not in self:
            yield
            return
        held = self._held[unit]
        self._uses.begin(held.use)
        try:
            for parameter in unit.parameters:
                if id(parameter) not in held.filled:
                    continue
                view = held.views[id(parameter)]
                if parameter.grad is None:
                    parameter.grad = view
                else:
                    parameter.grad.add_(view)
            yield
        finally:
            for parameter in unit.parameters:
                parameter.grad = None
            self._uses.end(held.use)
            self._forget(held)

    def drop(self) -> None:
        """Forget all."""
        for held in self._held.values():
            self._forget(held)

    def norm(self, parameters: Iterable[nn.Parameter]) -> torch.Tensor | None:
        """The 2-norm of all gradients of these, held or in `.grad`; None without any.

        Returns:
            Tensor of shape (), on the device.
        """
        norms = []
        for parameter in parameters:
            held = self._norms.get(id(parameter))
            if held is not None:
                norms.append(held)
            elif parameter.grad is not None:
                norms.append(torch.linalg.vector_norm(parameter.grad))
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else None

    def _make(self, unit: Unit) -> _Held:
        sizes = [align(parameter.nbytes) for parameter in unit.parameters]
        self._check_host(sum(sizes))
        made = self._pager.create_range(sum(sizes))
        views = {}
        address = made.address
        for parameter, size in zip(unit.parameters, sizes, strict=True):
            flat = bytes_at(address, parameter.nbytes, self._device)
            # As autograd lays a gradient out: like the parameter where that is dense.
            strides = torch.empty_like(parameter, device="meta").stride()
            views[id(parameter)] = view_as(flat, parameter.dtype, parameter.shape, strides, 0)
            address += size
        use = self._uses.define(f"{unit.name} (gradients)", [(made.address, sum(sizes), True)])
        held = _Held(made.address, sum(sizes), use, views)
        self._pager.forget(held.address, held.nbytes)  # nothing is there yet
        self._held[unit] = held
        return held

    def _forget(self, held: _Held) -> None:
        if held.filled:
            self._pager.forget(held.address, held.nbytes)
        for number in held.filled:
            self._norms.pop(number, None)
        held.filled.clear()
