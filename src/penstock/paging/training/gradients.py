# SPDX-License-Identifier: Apache-2.0
"""Gradients that must outlive their backward pass: in blocks too.

Accumulation over several backward passes, and whatever looks at gradients before the update, need
every gradient to stay. A unit's gradients move into a range as soon as they are whole, come in for
what touches them, and are forgotten when nothing refers to them any more: what is forgotten is
neither copied out nor brought in again. Gradients of parameters that always stay on the device, and
those that are not dense or have a graph, stay in `.grad` as they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from penstock.native import Pager

from ..blocks import align
from ..dlpack import bytes_at, view_as
from .hooks import TrainingUses
from .kept import KeptGradient, norm
from .units import Unit


@dataclass(slots=True, eq=False)
class _Range:
    """Room for the gradients of one unit."""

    address: int
    nbytes: int
    use: int
    views: dict[int, torch.Tensor] = field(repr=False)
    hosts: dict[int, torch.Tensor] = field(repr=False)
    owners: dict[int, weakref.ref[KeptGradient]] = field(default_factory=dict)
    filled: bool = False

    def taken(self, number: int) -> bool:
        """Whether a gradient of this parameter is still there."""
        return number in self.owners and self.owners[number]() is not None


@dataclass(slots=True, eq=False)
class _Place:
    """Where one gradient is."""

    view: torch.Tensor = field(repr=False)
    host: torch.Tensor = field(repr=False)
    held: _Range
    uses: TrainingUses

    @contextmanager
    def opened(self) -> Iterator[torch.Tensor]:
        """The unit's gradients are there meanwhile."""
        self.uses.begin(self.held.use)
        try:
            yield self.view
        finally:
            self.uses.end(self.held.use)


class HeldGradients:
    """The gradients of one model that are kept for later.

    Args:
        uses: Declares uses of what is made here.
        pager: Where ranges are made.
        device: Of the parameters.
        check_host: Called with the bytes of page-locked memory about to be asked for.
        touched: Called when an operator of the loop reads or writes a gradient.
        norms: Whether to find the norm of each gradient while it is there.
    """

    def __init__(
        self,
        uses: TrainingUses,
        pager: Pager,
        device: torch.device,
        check_host: Callable[[int], None],
        touched: Callable[[], None],
        *,
        norms: bool,
    ) -> None:
        self._uses = uses
        self._pager = pager
        self._device = device
        self._check_host = check_host
        self._touched = touched
        self._keep_norms = norms
        self._ranges: dict[Unit, list[_Range]] = {}
        self._spent: dict[int, KeptGradient] = {}

    # ---- In --------------------------------------------------------------------------------

    def hold(self, unit: Unit) -> None:
        """Move the unit's gradients that lie in ordinary memory into blocks."""
        for parameter in unit.parameters:
            grad = parameter.grad
            if grad is None or isinstance(grad, KeptGradient) or grad.layout != torch.strided:
                continue
            if grad.requires_grad:
                self._touched()  # by create_graph=True: a loss is to be made of it
                continue
            held = self._range_for(unit, parameter)
            kept = self._make_kept(unit, parameter, held.views[id(parameter)])
            number = id(parameter)
            kept.place = _Place(held.views[number], held.hosts[number], held, self._uses)
            with kept.place.opened() as content:
                content.copy_(grad)
                if self._keep_norms:
                    kept.known_norm = norm(content)
            held.owners[id(parameter)] = weakref.ref(kept)
            held.filled = True
            parameter.grad = kept

    def spend(self, unit: Unit, parameter: nn.Parameter) -> None:
        """The parameter was updated in backward: its gradient is gone, and says so."""
        kept = self._spent.get(id(parameter))
        if kept is None:
            kept = self._spent[id(parameter)] = self._make_kept(unit, parameter, parameter)
        kept.empty()
        parameter.grad = kept

    def is_spent(self, parameter: torch.Tensor) -> bool:
        """Whether what spend() has left is still in its `.grad`."""
        kept = self._spent[id(parameter)]
        return parameter.grad is kept and kept.gone

    def name_of(self, parameter: torch.Tensor) -> str:
        """The path of one that was spent."""
        return self._spent[id(parameter)].path

    def _make_kept(self, unit: Unit, parameter: nn.Parameter, like: torch.Tensor) -> KeptGradient:
        return KeptGradient(like, unit.name_of(parameter), self._touched)

    # ---- Out -------------------------------------------------------------------------------

    @contextmanager
    def given_back(self, parameters: list[nn.Parameter]) -> Iterator[None]:
        """Around their update: the content of their gradients is in `.grad`."""
        before: list[tuple[nn.Parameter, KeptGradient]] = []
        runs: list[_Range] = []
        try:
            for parameter in parameters:
                grad = parameter.grad
                if not isinstance(grad, KeptGradient):
                    continue
                before.append((parameter, grad))
                grad.known_norm, grad.used = None, True  # who updates may scale
                if not isinstance(grad.place, _Place):
                    with grad.opened() as content:
                        parameter.grad = content
                    continue
                if grad.place.held not in runs:
                    self._uses.begin(grad.place.held.use)
                    runs.append(grad.place.held)
                parameter.grad = grad.place.view
            yield
        finally:
            for parameter, grad in before:
                parameter.grad = grad
            for held in runs:
                self._uses.end(held.use)

    def ranges_of(self, parameters: list[nn.Parameter]) -> list[tuple[int, int]]:
        """(address, bytes) of what given_back() brings in."""
        places = (getattr(p.grad, "place", None) for p in parameters)
        return [(at.held.address, at.held.nbytes) for at in places if isinstance(at, _Place)]

    def take_out(self, parameters: list[nn.Parameter], *, keep: bool) -> dict[int, torch.Tensor]:
        """Leave no gradient with the parameters.

        Returns:
            With `keep` copies of them on the host, by the parameter's place in the list.
        """
        copies = {}
        for number, parameter in enumerate(parameters):
            grad = parameter.grad
            if grad is not None and keep and not (isinstance(grad, KeptGradient) and grad.gone):
                copies[number] = self._host_copy(grad)
            parameter.grad = None
        return copies

    def _host_copy(self, grad: torch.Tensor) -> torch.Tensor:
        """Takes no device memory, of which there may be none: of what pages, not to bring it in."""
        place = getattr(grad, "place", None)
        with _disable_current_modes():  # another's, in a pass, would count it as the device's
            if not isinstance(place, _Place):
                return grad.to("cpu", copy=True)
            self._pager.flush(place.view.data_ptr(), place.view.nbytes)
            return place.host.clone()

    def forget(self) -> None:
        """What nothing refers to any more need not be copied."""
        for ranges in self._ranges.values():
            for held in ranges:
                if held.filled and not any(map(held.taken, held.views)):
                    self._pager.forget(held.address, held.nbytes)
                    held.filled = False

    def norm_of(self, parameter: nn.Parameter) -> torch.Tensor:
        """The 2-norm of its gradient; shape ()."""
        grad = parameter.grad
        assert grad is not None
        if isinstance(grad, KeptGradient) and grad.known_norm is not None:
            return grad.known_norm
        return norm(grad)

    # ---- Ranges ----------------------------------------------------------------------------

    def _range_for(self, unit: Unit, parameter: nn.Parameter) -> _Range:
        """Room for the parameter's gradient; of its own while an earlier one is referred to."""
        ranges = self._ranges.setdefault(unit, [])
        for held in ranges:
            if id(parameter) in held.views and not held.taken(id(parameter)):
                return held
        known = {number for held in ranges for number in held.views}
        wanted = [p for p in unit.parameters if p.requires_grad and id(p) not in known]
        if id(parameter) in known:
            wanted = [parameter]
        ranges.append(self._make(unit, wanted))
        return ranges[-1]

    def _make(self, unit: Unit, parameters: list[nn.Parameter]) -> _Range:
        sizes = [align(parameter.nbytes) for parameter in parameters]
        self._check_host(sum(sizes))
        made = self._pager.create_range(sum(sizes))
        views: dict[int, torch.Tensor] = {}
        hosts: dict[int, torch.Tensor] = {}
        offset = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            # As autograd lays a gradient out: like the parameter where that is dense.
            like = torch.empty_strided(
                parameter.shape, parameter.stride(), dtype=parameter.dtype, device="meta"
            )
            strides = torch.empty_like(like).stride()
            for where, to, device in (
                (made.address, views, self._device),
                (made.host, hosts, torch.device("cpu")),
            ):
                flat = bytes_at(where + offset, parameter.nbytes, device)
                to[id(parameter)] = view_as(flat, parameter.dtype, parameter.shape, strides, 0)
            offset += size
        use = self._uses.define(f"{unit.name} (gradients)", [(made.address, sum(sizes), True)])
        self._pager.forget(made.address, sum(sizes))  # nothing is there yet
        return _Range(made.address, sum(sizes), use, views, hosts)
