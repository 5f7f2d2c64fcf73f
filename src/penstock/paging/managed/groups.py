# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a model move together in managed memory, and which modules use them.

A group is one transformer block, whole: it comes with one call. Transformer blocks are the
children of the longest nn.ModuleList and of every other whose children are of the same class
(encoder and decoder). Each other module that owns parameters has a group of its own. Buffers are
in no group: they may be written, and what is written must not be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

from ..blocks import Block, Home, align


@dataclass(slots=True)
class Group:
    """Blocks that lie together.

    Attributes:
        name: The path of the module that they belong to.
        blocks: In the order of the modules that own them.
        on_host: They never come to the device, which reads them over the link.
    """

    name: str
    blocks: list[Block] = field(default_factory=list)
    on_host: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks, laid one behind the other."""
        return sum(align(block.nbytes) for block in self.blocks)


@dataclass(slots=True)
class Groups:
    """The groups of a model.

    Attributes:
        groups: In the order in which the model's modules own them.
        uses: The groups, by number, that each module's forward needs.
        names: The paths of those modules.
        others: Blocks without a parameter, which are in no group.
    """

    groups: list[Group] = field(default_factory=list)
    uses: dict[nn.Module, list[int]] = field(default_factory=dict)
    names: dict[nn.Module, str] = field(default_factory=dict)
    others: list[Block] = field(default_factory=list)


def form_groups(model: nn.Module, blocks: list[Block]) -> Groups:
    """Put blocks into groups; tied blocks go where they are owned first, and all owners use them.

    Args:
        model: The root.
        blocks: All its blocks, as layout.collect_blocks gives them.
    """
    units = _units(model)
    paths = {module: path for path, module in model.named_modules()}
    result = Groups()
    number: dict[tuple[nn.Module, bool], int] = {}
    for block in blocks:
        owners = [slot.module for slot in block.slots]
        if not any(slot.is_parameter for slot in block.slots):
            result.others.append(block)
            continue
        on_host = block.home is Home.HOST
        unit = units[owners[0]]
        index = number.setdefault((unit, on_host), len(result.groups))
        if index == len(result.groups):
            result.groups.append(Group(paths[unit], on_host=on_host))
        result.groups[index].blocks.append(block)
        for owner in owners if not on_host else []:
            user = units[owner]
            needed = result.uses.setdefault(user, [])
            if index not in needed:
                needed.append(index)
                result.names[user] = paths[user]
    return result


def _units(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """The transformer block that each module is in; the module itself where it is in none."""
    units: dict[nn.Module, nn.Module] = {}
    for block in _transformer_blocks(model):
        for module in block.modules():
            units.setdefault(module, block)
    for module in model.modules():
        units.setdefault(module, module)
    return units


def _transformer_blocks(model: nn.Module) -> Iterator[nn.Module]:
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) > 0 and all(map(_has_forward, module))
    ]
    if not lists:
        return
    kind = type(max(lists, key=len)[0])
    for found in lists:
        if all(type(child) is kind for child in found):
            yield from found


def _has_forward(module: nn.Module) -> bool:
    """Whether it is called; an nn.ModuleList or nn.ModuleDict only holds others."""
    return type(module).forward is not nn.Module.forward
