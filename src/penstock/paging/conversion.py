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

from penstock.errors import OutOfMemory, UsageError
from penstock.units import format_bytes

from .blocks import Block, Slot
from .tables import Table

MOVES, SCRIPTS = "_apply", "__prepare_scriptable__"
Convert = Callable[[torch.Tensor], torch.Tensor]


class ConversionGuard:
    """Stands before what would move, cast or script a module of one attached model.

    Args:
        modules: The modules, the whole model first.
        slots: Their tensors.
        in_forward: Whether a pass is under way.
        room: Bytes of the device for parts that are given a wider dtype between passes.
    """

    def __init__(
        self,
        modules: dict[nn.Module, Any],
        slots: dict[nn.Module, list[tuple[Block, Slot]]],
        in_forward: Callable[[], bool],
        room: Callable[[], int],
    ) -> None:
        self._room = room
        self._root = next(iter(modules))
        self._modules = modules
        self._slots = slots
        self._in_forward = in_forward
        for module in modules:
            module.__dict__[MOVES] = partial(self._apply, module)
            module.__dict__[SCRIPTS] = _refuse_script

    def remove(self) -> None:
        """The modules can be converted again."""
        for module in self._modules:
            for name in (MOVES, SCRIPTS):
                module.__dict__.pop(name, None)

    def _apply(self, module: nn.Module, fn: Convert, recurse: bool = True) -> nn.Module:
        parts = list(module.modules()) if recurse else [module]
        owned = [each for part in parts for each in self._slots.get(part, ())]
        cast = [slot for block, slot in owned if self._may_be_cast(module, block, slot, fn)]
        casts = set(cast)
        for _, slot in owned:
            if slot not in casts:
                _check(slot, fn)
        if not self._in_forward():
            self._check_room(cast, fn)
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
        if _instead(slot) is not None:
            return True
        probe = _probe(slot.tensor)
        applied = fn(probe)
        same = applied.untyped_storage().data_ptr() == probe.untyped_storage().data_ptr()
        if same or applied.device != probe.device:
            return False
        wider = _is_wider(applied.dtype, probe.dtype)
        part = module is not self._root and wider
        return self._in_forward() or (part and self._room() > 0)

    def _check_room(self, cast: list[Slot], fn: Convert) -> None:
        """Whether there is room for what would stay on the device then, or it becomes less."""
        slots = [slot for own in self._slots.values() for _, slot in own]
        before = {slot: now.nbytes for slot in slots if (now := _instead(slot)) is not None}
        after = before | {s: s.tensor.numel() * fn(_probe(s.tensor)).element_size() for s in cast}
        needed, room = sum(after.values()), self._room()
        if needed > max(room, sum(before.values())):
            raise OutOfMemory(
                f"what has been cast is not paged: with {cast[0].name} and its like it would be "
                f"{format_bytes(needed)} within a gpu_memory of {format_bytes(room)}",
                remedy="a larger gpu_memory, or detach(), convert the model, attach() again",
                needed_bytes=needed,
                budget_bytes=room,
            )


def _is_wider(dtype: torch.dtype, before: torch.dtype) -> bool:
    """Whether another dtype holds all that one of before does."""
    try:
        return dtype is not before and torch.promote_types(dtype, before) is dtype
    except RuntimeError:  # those of one byte have no common dtype with any
        return dtype.itemsize > before.itemsize


def _instead(slot: Slot) -> torch.Tensor | None:
    """What stands in the place of a paged tensor."""
    now = dict.get(slot.table, slot.key) if isinstance(slot.table, Table) else slot.tensor
    return None if now is slot.tensor else now


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
