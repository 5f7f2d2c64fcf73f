# SPDX-License-Identifier: Apache-2.0
"""What a model keeps in memory, storage by storage, and where each goes.

A block is one storage: parameters and buffers that share it (tied weights, views) share the
block. Blocks lie in the order in which the modules own them, which is close to the order of use,
in arenas of at most ARENA_BYTES, so that moving a model in never holds a second copy of more than
one arena. Blocks are packed without rounding: a page at a border belongs to both neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set, ValuesView
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from penstock.errors import UsageError
from penstock.units import GIB, KIB, MIB

from .hanging import hanging_on
from .tables import TABLES
from .wrappers import keeps_its_tensors, leaves_of

ALIGNMENT = 512  # what PyTorch's own allocator gives, so that the same kernels are chosen
ARENA_BYTES = 1 * GIB
# Norms and biases are used everywhere and weigh nothing: in a model of some size they stay.
SMALL_BLOCK = 256 * KIB
SMALL_SHARE = 0.002
LITTLE = 1 * KIB
SMALL_MODEL = 256 * MIB
Item = TypeVar("Item")
_PLAIN = "a plain tensor in its place, or attach() the parts of the model that do without it"
_DISTRIBUTED = "torch.distributed"  # a part of a tensor that others have the rest of


@dataclass(slots=True, eq=False)
class Slot:
    """One place in a module that holds a tensor: module._parameters[key] or _buffers[key].

    Of a parameter that is made of others (wrappers.py) each has a slot: `key` is that of its
    `wrapper`'s attribute. The parameter is the `outermost` one of wrappers within wrappers. What
    hangs on a parameter (hanging.py) is an attribute of its `holder`.
    """

    module: nn.Module
    key: str
    name: str
    is_parameter: bool
    # What is in them may not be there to be shown, in a traceback with its values, say.
    tensor: torch.Tensor = field(repr=False)
    wrapper: torch.Tensor | None = field(default=None, repr=False)
    outermost: torch.Tensor | None = field(default=None, repr=False)
    holder: object | None = field(default=None, repr=False)

    @property
    def table(self) -> dict[str, torch.Tensor | None]:
        """The dict that the tensor is looked up in: the module's, a wrapper's or a holder's."""
        if self.wrapper is not None:
            return self.wrapper.__dict__
        if self.holder is not None:
            return self.holder.__dict__
        tables: dict[str, dict[str, torch.Tensor | None]] = self.module.__dict__
        return tables["_parameters" if self.is_parameter else "_buffers"]


class Home(Enum):
    """Where a block lives."""

    PAGED = "paged"  # comes and goes
    PINNED = "pinned"  # always in device memory
    HOST = "host"  # never: the device reads it over the link


@dataclass(slots=True, eq=False)
class Block:
    """One storage, and all the slots whose tensors lie in it.

    Attributes:
        nbytes: Bytes of the storage.
        slots: Where its tensors are held.
        home: Where it lives.
        address: Of its device bytes, once it has been placed.
        device_bytes: All of it, flat, at that address.
        host_bytes: All of it, flat: the page-locked copy.
        written: A use may change it; buffers are written, parameters once it has been seen.
        changed: An operator of a pass was seen to change it.
        encoded: The host has its code in the place of `host_bytes`.
    """

    nbytes: int
    slots: list[Slot] = field(default_factory=list)
    home: Home = Home.PAGED
    address: int = 0
    device_bytes: torch.Tensor | None = field(default=None, repr=False)
    host_bytes: torch.Tensor | None = field(default=None, repr=False)
    written: bool = False
    changed: bool = False
    encoded: bool = False

    @property
    def name(self) -> str:
        """The name of its first tensor."""
        return self.slots[0].name


def _slots(model: nn.Module) -> Iterator[Slot]:
    for prefix, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{prefix}.{key}" if prefix else key
                if not is_traceable_wrapper_subclass(parameter):
                    yield Slot(module, key, name, True, parameter)
                    continue
                outermost: Any = parameter
                for path, leaf, holder in leaves_of(parameter):
                    leaf_name = ".".join((name, *path))
                    yield Slot(module, path[-1], leaf_name, True, leaf, holder, outermost)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                name = f"{prefix}.{key}" if prefix else key
                yield Slot(module, key, name, False, buffer)
        for place, key, tensor, holder in hanging_on(module):
            name = f"{prefix}.{place}" if prefix else place
            yield Slot(module, key, name, True, tensor, holder=holder)


class Models(nn.ModuleDict):
    """Several models under one attachment; never called itself.

    Attributes:
        source: What they came in, which detach() gives back.
    """

    def __init__(self, modules: dict[str, nn.Module], source: object) -> None:
        super().__init__(modules)
        self.source = source


def as_module(model: object) -> nn.Module:
    """The model, or those of a list, a dict, or any object that holds modules, as one module.

    An object that has `components`, as a diffusers pipeline does, is known by these; any other by
    its attributes.
    """
    if isinstance(model, nn.Module) or model is None:
        return model  # type: ignore[return-value]
    named: Mapping[Any, Any]
    if isinstance(model, Set | Iterator | ValuesView):
        raise UsageError(
            f"several modules can be attached together, and a {type(model).__name__} does not tell "
            "them by name or number",
            remedy="list() of it",
        )
    if isinstance(model, Mapping):
        named = model
    elif isinstance(model, list | tuple):
        named = {str(i): part for i, part in enumerate(model)}
    else:
        components = getattr(model, "components", None)
        named = components if isinstance(components, Mapping) else getattr(model, "__dict__", {})
    modules = {str(k).replace(".", "_"): v for k, v in named.items() if isinstance(v, nn.Module)}
    if isinstance(model, Mapping | list | tuple) and not len(modules) == len(named) > 0:
        others = [type(v).__name__ for v in named.values() if not isinstance(v, nn.Module)]
        why = f"one is of type {others[0]}" if others else "two have one name"
        raise UsageError(
            "all that is attached together must be modules, and "
            + (why if named else f"the {type(model).__name__} is empty"),
            remedy="a list, or a dict, of the modules alone",
        )
    return Models(modules, model) if modules else model  # type: ignore[return-value]


def check_model(model: object) -> None:
    """Refuse what cannot be paged, before anything has been touched.

    Raises:
        UsageError: If it is no module, is compiled by TorchScript, or has tensors whose bytes do
            not lie in one ordinary storage.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"a torch.nn.Module can be attached, and this is of type {type(model).__name__}",
            remedy="a module, such as the unet of a pipeline",
        )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(
                f"{name or 'the model'} is compiled by TorchScript, whose weights cannot be moved",
                remedy="attach the module that it was scripted or traced from",
            )
        others = [type(vars(module)[table]) for table in TABLES]
        if other := next((each for each in others if not issubclass(each, dict)), None):
            raise UsageError(
                f"{name or 'the model'} keeps its weights in a {other.__name__}, as those of "
                "libraries that move weights themselves do, and not in a dict",
                remedy="attach() before the library has them, or have it give them back",
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        sharded = type(tensor).__module__.startswith(_DISTRIBUTED)
        if sharded or tensor.is_nested:
            raise UsageError(
                f"{name} cannot be paged: it is a {type(tensor).__name__}",
                remedy="a model that is whole in each process" if sharded else _PLAIN,
            )
        if is_traceable_wrapper_subclass(tensor) and not keeps_its_tensors(tensor):
            raise UsageError(
                f"{name} cannot be paged: a {type(tensor).__name__} does not keep the tensors that "
                "it is made of",
                remedy=_PLAIN,
            )
    for slot in _slots(model):
        if (reason := _why_not(slot.tensor)) is not None:
            lazy = nn.parameter.is_lazy(slot.tensor)
            raise UsageError(
                f"{slot.name} cannot be paged: it {reason}",
                remedy="one forward, then attach()" if lazy else _PLAIN,
            )


def _why_not(tensor: torch.Tensor) -> str | None:
    """What keeps a tensor from being moved as the plain bytes of its storage."""
    if nn.parameter.is_lazy(tensor):
        return "has no shape before the first forward"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"is a {type(tensor).__name__}, a tensor subclass with a storage of its own kind"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"is stored as {tensor.layout}"
    if tensor.is_quantized:
        return f"is quantized ({tensor.dtype})"
    if tensor.is_conj() or tensor.is_neg():
        return "is a conjugated or negated view"
    return None


def collect_blocks(model: nn.Module) -> list[Block]:
    """The blocks of a model in the order of its modules; empty tensors have none."""
    blocks: dict[int, Block] = {}
    for slot in _slots(model):
        storage = slot.tensor.untyped_storage()
        if storage.nbytes() == 0:
            continue
        block = blocks.setdefault(storage._cdata, Block(storage.nbytes()))
        block.slots.append(slot)
        # Tensors made under inference_mode do not tell when they are changed.
        unseen = slot.tensor.is_inference() and not slot.tensor.is_meta
        block.written |= not slot.is_parameter or unseen
    result = list(blocks.values())
    for block in result:
        if block.nbytes <= LITTLE and any(slot.holder is not None for slot in block.slots):
            block.home = Home.PINNED  # a scale of scales, whose value a library may ask for
    total = sum(block.nbytes for block in result)
    if total >= SMALL_MODEL:
        _pin_small(result, total)
    return result


def _pin_small(blocks: list[Block], total: int) -> None:
    left = int(total * SMALL_SHARE)
    for block in sorted(blocks, key=lambda block: block.nbytes):
        size = align(block.nbytes)
        if block.nbytes > SMALL_BLOCK or size > left:
            return
        block.home = Home.PINNED
        left -= size


def keep_if_little(blocks: list[Block], room: int) -> None:
    """Blocks stay on the device, where all of them take no more than the room.

    Args:
        blocks: Those that are trained, as adapters are.
        room: Bytes.
    """
    if sum(align(block.nbytes) for block in blocks) <= room:
        for block in blocks:
            block.home = Home.PINNED


def leave_tables_on_host(blocks: list[Block]) -> None:
    """Embedding tables stay on the host: a pass reads a few of their rows, not the table.

    For a model that does not fit. GPT-3 6.7B's token table is 412 MB; the rows of 1,024 tokens are
    8 MB, 0.16 ms over the link, where keeping the table costs 7.4 ms a pass of other weights'
    copies. Not for tables that another module uses as a matrix (tied heads), nor with max_norm,
    which writes.
    """
    for block in blocks:
        if block.nbytes > SMALL_BLOCK and all(
            isinstance(slot.module, nn.Embedding) and slot.module.max_norm is None
            for slot in block.slots
        ):
            block.home = Home.HOST


def may_encode(block: Block) -> bool:
    """Whether the block can lie encoded on the host: bf16 weights that come as a whole, to be read.

    Tables and experts of which rows are read in place have to lie there as they are.
    """
    return (
        block.home is Home.PAGED
        and not block.written
        and all(
            slot.is_parameter
            and slot.wrapper is None
            and slot.tensor.dtype is torch.bfloat16
            and not isinstance(slot.module, nn.Embedding | nn.EmbeddingBag)
            and (slot.tensor.dim() <= 2 or isinstance(slot.module, _ConvNd))
            for slot in block.slots
        )
    )


def align(size: int) -> int:
    """Round a size up to ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def arenas(items: Iterable[Item], nbytes: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Cut blocks, or what is like them, into arenas; one beyond ARENA_BYTES has one of its own."""
    arena: list[Item] = []
    size = 0
    for item in items:
        if arena and size + align(nbytes(item)) > ARENA_BYTES:
            yield arena
            arena, size = [], 0
        arena.append(item)
        size += align(nbytes(item))
    if arena:
        yield arena
