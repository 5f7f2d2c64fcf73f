# SPDX-License-Identifier: Apache-2.0
"""Refuses to move, cast or script an attached model: half(), to(), share_memory() and their like.

They all go through ``nn.Module._apply``, which gives each tensor other data without a word to
anybody. Those that change nothing, such as ``model.to("cuda")`` of a model that is there, are let
through. What a model casts of itself in its forward, as some do with routers, is replaced by a
tensor that stays on the device; so is a part that is given a wider dtype between passes, as
pipelines do with decoders in half precision. Cast back, unchanged, it is paged again.
``torch.jit.script`` asks for ``__prepare_scriptable__`` first.
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
Convert = Callable[[torch.Tensor], torch.Tensor]


class ConversionGuard:
    """Stands before what would move, cast or script a module of one attached model.

    Args:
        modules: The modules, the whole model first.
        slots: Their tensors.
        in_forward: Whether a pass is under way.
        parts_widen: Whether a part may be given a wider dtype between passes.
    """

    def __init__(
        self,
        modules: dict[nn.Module, Any],
        slots: dict[nn.Module, list[tuple[Block, Slot]]],
        in_forward: Callable[[], bool],
        *,
        parts_widen: bool = False,
    ) -> None:
        self._parts_widen = parts_widen
        self._root = next(iter(modules))
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

    def _apply(self, module: nn.Module, fn: Convert, recurse: bool = True) -> nn.Module:
        parts = list(module.modules()) if recurse else [module]
        cast: list[Slot] = []
        for part in parts:
            for block, slot in self._slots.get(part, ()):
                if self._may_be_cast(module, block, slot, fn):
                    cast.append(slot)
                else:
                    _check(slot, fn)
        for slot in cast:
            _cast(slot, fn)
        for part in parts:
            if part not in self._modules:  # the user has added it
                part._apply(fn, recurse=False)
        return module

    def _may_be_cast(self, module: nn.Module, block: Block, slot: Slot, fn: Convert) -> bool:
        """Whether it is a tensor of one place, and becomes one with memory of its own, there too.

        Of what is no longer paged, anything may become.
        """
        if not isinstance(slot.table, Table) or len(block.slots) > 1:
            return False
        if dict.get(slot.table, slot.key) is not slot.tensor:
            return True
        probe = _probe(slot.tensor)
        applied = fn(probe)
        same = applied.untyped_storage().data_ptr() == probe.untyped_storage().data_ptr()
        if same or applied.device != probe.device:
            return False
        wider = torch.promote_types(applied.dtype, probe.dtype) is applied.dtype
        part = self._parts_widen and module is not self._root
        return self._in_forward() or (part and wider and applied.dtype is not probe.dtype)


def _refuse_script() -> NoReturn:
    raise UsageError(
        "an attached model cannot be scripted: what brings its weights in is Python",
        remedy="torch.jit.script() before attach(), or after detach()",
    )


def _cast(slot: Slot, fn: Convert) -> None:
    table = slot.table
    assert isinstance(table, Table)
    with torch.inference_mode(mode=False), torch.no_grad():
        before = table[slot.key]
        if before is None or (after := fn(before)) is before:
            return
        if before is not slot.tensor and after.dtype is slot.tensor.dtype:
            table[slot.key] = slot.tensor
            if _same_bits(after, table[slot.key]):
                table.replaced.discard(slot.key)
                return
    if slot.is_parameter:
        after = nn.Parameter(after, requires_grad=before.requires_grad)
    table[slot.key] = after


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _probe(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros((2,) * tensor.dim(), dtype=tensor.dtype, device=tensor.device)


def _check(slot: Slot, fn: Convert) -> None:
    tensor = slot.tensor
    probe = _probe(tensor)
    applied = fn(probe)
    if applied is not probe or (probe.device.type == "cpu" and probe.is_shared()):
        raise UsageError(
            f"an attached model cannot be moved, cast or shared: {slot.name} stays "
            f"{tensor.dtype} on {tensor.device}",
            remedy="detach(), convert the model, attach() again",
        )
