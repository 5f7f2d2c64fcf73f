# SPDX-License-Identifier: Apache-2.0
"""Refuses to move, cast or script an attached model: half(), to(), share_memory() and their like.

They all go through ``nn.Module._apply``, which gives each tensor other data without a word to
anybody. Those that change nothing, such as ``model.to("cuda")`` of a model that is there, are let
through. What a model casts of itself in its forward, as some do with routers, is replaced by a
tensor that stays on the device. ``torch.jit.script`` asks for ``__prepare_scriptable__`` first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn

from penstock.errors import UsageError

from .blocks import Block, Slot
from .tables import Table

_MOVES, _SCRIPTS = "_apply", "__prepare_scriptable__"


class ConversionGuard:
    """Stands before what would move, cast or script a module of one attached model.

    Args:
        modules: The modules.
        slots: Their tensors.
        in_forward: Whether a pass is under way.
    """

    def __init__(
        self,
        modules: dict[nn.Module, Any],
        slots: dict[nn.Module, list[tuple[Block, Slot]]],
        in_forward: Callable[[], bool],
    ) -> None:
        self._modules = modules
        self._slots = slots
        self._in_forward = in_forward
        for module in modules:
            module.__dict__[_MOVES] = partial(self._apply, module)
            module.__dict__[_SCRIPTS] = _refuse_script

    def remove(self) -> None:
        """The modules can be converted again."""
        for module in self._modules:
            for name in (_MOVES, _SCRIPTS):
                module.__dict__.pop(name, None)

    def _apply(
        self, module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> nn.Module:
        parts = list(module.modules()) if recurse else [module]
        cast: list[Slot] = []
        for part in parts:
            for block, slot in self._slots.get(part, ()):
                if self._in_forward() and _may_be_cast(block, slot, fn):
                    cast.append(slot)
                else:
                    _check(slot, fn)
        for slot in cast:
            _cast(slot, fn)
        for part in parts:
            if part not in self._modules:  # the user has added it
                part._apply(fn, recurse=False)
        return module


def _refuse_script() -> NoReturn:
    raise UsageError(
        "an attached model cannot be scripted: what brings its weights in is Python",
        remedy="torch.jit.script() before attach(), or after detach()",
    )


def _may_be_cast(block: Block, slot: Slot, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether it is a tensor of one place, and becomes one with memory of its own, there too."""
    if not isinstance(slot.table, Table) or len(block.slots) > 1:
        return False
    probe = _probe(slot.tensor)
    applied = fn(probe)
    same = applied.untyped_storage().data_ptr() == probe.untyped_storage().data_ptr()
    return not same and applied.device == probe.device


def _cast(slot: Slot, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        before = slot.table[slot.key]
        assert before is not None
        after = fn(before)
    if after is before:
        return
    if slot.is_parameter:
        after = nn.Parameter(after, requires_grad=before.requires_grad)
    slot.table[slot.key] = after


def _probe(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros((2,) * tensor.dim(), dtype=tensor.dtype, device=tensor.device)


def _check(slot: Slot, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensor = slot.tensor
    probe = _probe(tensor)
    applied = fn(probe)
    if applied is not probe or (probe.device.type == "cpu" and probe.is_shared()):
        raise UsageError(
            f"an attached model cannot be moved, cast or shared: {slot.name} stays "
            f"{tensor.dtype} on {tensor.device}",
            remedy="detach(), convert the model, attach() again",
        )
