# SPDX-License-Identifier: Apache-2.0
"""The units of training: modules that own tensors, with what they read and what is updated there.

A unit has three uses. *forward* and *backward* read its blocks; *update* reads and writes the
blocks of its parameters together with their optimizer state. A parameter that several modules own
(tied weights) is read by the units of all of them and updated with the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from penstock.errors import UsageError

from ..blocks import Block, Home

if TYPE_CHECKING:
    from .run import Run

NO_USE = -1


@dataclass(slots=True, eq=False)
class Unit:
    """One module that owns tensors.

    Attributes:
        name: The module's path.
        module: It.
        blocks: The paged blocks that it reads; more may be found while the first pass is watched.
        unwritten: The tensors in those of them that forward is not known to change.
        parameters: The parameters updated with it.
        own: The paged blocks that these parameters lie in.
        forward: Use number of its forward; NO_USE when it reads no paged block.
        backward: Use number of its backward.
        calls: How often its forward has run since the last step.
        open: Its backward that is under way, if one is.
        late: Whether backward was seen to use its parameters, or to add to their gradients, once
            these had seemed to be whole: its update is at the end of backward.
    """

    name: str
    module: nn.Module
    blocks: list[Block] = field(default_factory=list)
    unwritten: list[torch.Tensor] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)
    own: list[Block] = field(default_factory=list)
    forward: int = NO_USE
    backward: int = NO_USE
    calls: int = 0
    open: Run | None = None
    late: bool = False

    def name_of(self, parameter: torch.Tensor) -> str:
        """The path of a parameter that the module owns."""
        for key, value in self.module._parameters.items():
            if value is parameter:
                return f"{self.name}.{key}" if self.name else key
        return self.name


def make_units(model: nn.Module, blocks: list[Block]) -> list[Unit]:
    """The units of a model in the order of its modules, nothing being updated yet.

    Args:
        model: The root.
        blocks: Its blocks, placed.
    """
    names = {module: name for name, module in model.named_modules()}
    units: dict[nn.Module, Unit] = {}
    for block in blocks:
        for slot in block.slots:
            unit = units.setdefault(slot.module, Unit(names[slot.module], slot.module))
            if block.home is Home.PAGED and block not in unit.blocks:
                unit.blocks.append(block)
    order = {module: place for place, module in enumerate(model.modules())}
    return sorted(units.values(), key=lambda unit: order[unit.module])


def unit_of(model: nn.Module, module: nn.Module) -> Unit:
    """A unit of a module that owns nothing."""
    return Unit({other: path for path, other in model.named_modules()}.get(module, ""), module)


def assign_parameters(units: list[Unit], blocks: list[Block], trained: set[int]) -> None:
    """Say anew which parameters are updated with which unit.

    Args:
        units: All.
        blocks: Of the model.
        trained: Identities (id()) of the parameters that are updated.
    """
    by_module = {unit.module: unit for unit in units}
    for unit in units:
        unit.parameters, unit.own = [], []
    seen: set[int] = set()
    for block in blocks:
        for slot in block.slots:
            tensor = slot.tensor
            if id(tensor) not in trained or id(tensor) in seen:
                continue
            assert isinstance(tensor, nn.Parameter)
            seen.add(id(tensor))
            unit = by_module[slot.module]
            unit.parameters.append(tensor)
            if block.home is Home.PAGED and block not in unit.own:
                unit.own.append(block)


def check_trained(model: nn.Module, units: list[Unit]) -> None:
    """Refuse an optimizer over other parameters; of a frozen model, what goes in may be trained.

    Raises:
        UsageError: If it is one.
    """
    if any(p.requires_grad for p in model.parameters()) and not any(
        unit.parameters for unit in units
    ):
        raise UsageError(
            "the optimizer updates no parameter of this model",
            remedy="an optimizer over model.parameters(); or model.requires_grad_(False) where "
            "only what goes into it is trained",
        )
