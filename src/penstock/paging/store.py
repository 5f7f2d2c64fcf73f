# SPDX-License-Identifier: Apache-2.0
"""Moves a model's tensors into blocks, and out again.

Invariant: a Parameter keeps its identity (unless it was on "meta", which has none worth keeping),
ties and shared storages stay as they were, and at no time is more than one arena held twice.

A tensor is in one of two places: at its device address, which is valid while a use is running that
covers its block, or at the page-locked host copy, which is always valid and which the device
reaches over the link. Which of them is moved by `to_host` and `to_device`; whoever holds the tensor
goes along, whoever holds a view of it does not.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._prims_common import compute_required_storage_length
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from penstock.errors import UsageError
from penstock.native import ON_HOST, PINNED, Pager

from .blocks import Block, Home, Slot, align, arenas
from .dlpack import bytes_at, bytes_of, view_as
from .modes import out_of_inference
from .watch import has_storage

Loader = Callable[[str, torch.Tensor], None]
# Told of bytes as they are moved in.
MOVED_IN: ContextVar[Callable[[int], None] | None] = ContextVar("MOVED_IN", default=None)
_CPU = torch.device("cpu")
_FLAGS = {Home.PAGED: 0, Home.PINNED: PINNED, Home.HOST: ON_HOST}
_MARKS = (0xA5, 0x5A)  # what a destination begins with before it is loaded


def like(tensor: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """A view of the flat bytes where `tensor` lies in its own storage.

    It is made in inference mode where `tensor` was, but on "meta": one that takes data of the other
    kind is of neither, and cannot be used at all.
    """
    at = tensor.size(), tensor.stride(), int(tensor.storage_offset())
    if tensor.is_meta or not tensor.is_inference():
        return view_as(flat, tensor.dtype, *at)
    with torch.inference_mode():
        empty = torch.empty(0, dtype=tensor.dtype, device=flat.device)
        return empty.set_(flat.untyped_storage(), at[2], *at[:2])


@dataclass(slots=True, repr=False)
class _Moved:
    """A tensor of the model, and the views that are its data in turn."""

    tensor: torch.Tensor
    before: torch.Tensor  # what the model had: the same object, unless it was on "meta"
    device: torch.Tensor
    host: torch.Tensor | None = None


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def _copied(moved: _Moved, flat: torch.Tensor) -> torch.Tensor:
    return like(moved.device, flat)


class BlockStore:
    """The blocks of one model, in the ranges of one pager.

    Attributes:
        blocks: All of them.
        chunk: Bytes of a page.
        storages: Everything that tensors over memory of the pager's can share, for as long as
            somebody does.

    Args:
        blocks: All of them.
        pager: The pager.
        device: Where their tensors will be.
        chunk: Bytes of a page; 0 where there are none.
        encode: Whether a block may lie encoded on the host, where that gains.
        check_host: Raises OutOfMemory where the host has no more page-locked bytes than so many;
            asked where blocks are encoded.
    """

    def __init__(
        self,
        blocks: list[Block],
        pager: Pager | None,
        device: torch.device,
        *,
        chunk: int = 0,
        encode: Callable[[Block], bool] | None = None,
        check_host: Callable[[int], None] | None = None,
    ) -> None:
        self.blocks = blocks
        self.device = device
        self.chunk = chunk
        self.storages: list[StorageWeakRef] = []
        self._pager = pager
        self._encode = encode
        self._check_host = check_host
        self._ranges: list[tuple[int, int]] = []
        self._moved: dict[Block, list[_Moved]] = {}

    # ---- In and out ------------------------------------------------------------------------

    @out_of_inference()
    def move_in(self, load: Loader | None) -> None:
        """Place every block; on failure what was placed can be moved out again."""
        for home in (Home.PINNED, Home.HOST, Home.PAGED):
            for arena in arenas((b for b in self.blocks if b.home is home), lambda b: b.nbytes):
                self._place(arena, load, home)

    def flush(self, blocks: Iterable[Block] | None = None) -> None:
        """Make the host copies of these blocks current, or of all."""
        assert self._pager is not None
        for block in self.blocks if blocks is None else blocks:
            self._pager.flush(block.address, block.nbytes)

    def slots(self) -> Iterable[tuple[Block, Slot]]:
        """Every slot with its block."""
        return ((block, slot) for block in self.blocks for slot in block.slots)

    def addresses(self) -> set[int]:
        """Where the blocks begin, on the device and on the host."""
        hosts = {
            block.host_bytes.data_ptr() for block in self.blocks if block.host_bytes is not None
        }
        return hosts | {block.address for block in self.blocks}

    @_disable_current_modes()  # it is the host's, and a pass would count it as the device's
    @out_of_inference()
    def copy_of(self, block: Block, slot: Slot) -> torch.Tensor:
        """The slot's tensor on the CPU, as the host copy has it."""
        moved = next(moved for moved in self._moved[block] if moved.tensor is slot.tensor)
        self._follow(block, moved)
        return like(moved.device, self._decoded(block)).clone()

    def _decoded(self, block: Block) -> torch.Tensor:
        """The host copy, or another one where that is encoded."""
        if block.encoded:
            assert self._pager is not None
            flat = torch.empty(block.nbytes, dtype=torch.uint8, device="cpu")
            self._pager.read(block.address, block.nbytes, flat.data_ptr())
            return flat
        assert block.host_bytes is not None
        return block.host_bytes

    @_disable_current_modes()  # another's, in a pass, would count copies as the device's
    @out_of_inference()
    def move_out(self, *, undo: bool = False, views: bool = False) -> None:
        """Give the model ordinary tensors on the CPU, with the content of the host copies.

        Blocks that were never filled are left alone, and so is what the user has replaced.

        Args:
            undo: The model gets back on "meta" what was there before.
            views: Whether views of them that others hold go along. What autograd has saved must
                not: its graph is the device's, which is kept for it.
        """
        left: dict[int, torch.Tensor] = {}  # by storage: blocks that others have views of
        for block in self.blocks:
            if block in self._moved and (block.encoded or block.host_bytes is not None):
                if undo and all(moved.before is not moved.tensor for moved in self._moved[block]):
                    self._put_back(block)
                else:
                    flat = self._decoded(block)
                    flat = flat if block.encoded else flat.clone()
                    self._point(block, partial(_copied, flat=flat))
                    assert block.device_bytes is not None
                    ours = [block.device_bytes, *(moved.device for moved in self._moved[block])]
                    ours += [each._base for each in ours if each._base is not None]
                    if _users(block.device_bytes) > len(set(map(id, ours))):
                        left[block.device_bytes.untyped_storage()._cdata] = flat
            self._forget(block)
        if left and views:
            _take_along(left)

    @out_of_inference()
    def drop(self) -> None:
        """Leave the model's tensors empty: what they lay in is about to go."""
        for block in self.blocks:
            if block in self._moved:
                self._point(block, lambda moved: moved.device.new_empty(0, device="cpu"))
            self._forget(block)

    def _forget(self, block: Block) -> None:
        block.host_bytes = block.device_bytes = None
        block.encoded = False
        self._moved.pop(block, None)

    def _put_back(self, block: Block) -> None:
        before = {id(moved.tensor): moved.before for moved in self._moved[block]}
        for slot in block.slots:
            if dict.get(slot.table, slot.key) is slot.tensor:
                slot.table[slot.key] = before[id(slot.tensor)]
            slot.tensor = before[id(slot.tensor)]

    # ---- Where a tensor is -----------------------------------------------------------------

    def to_host(self, block: Block) -> None:
        """Let the block's tensors lie in the host copy, which must be current."""
        self.unpack(block)
        moved = self._moved[block]
        if moved[0].host is None:
            with torch.inference_mode(False), temporarily_clear_interpreter_stack():
                assert block.host_bytes is not None
                flat = block.host_bytes
                if self.device != _CPU:
                    flat = self._bytes(flat.data_ptr(), block.nbytes, self.device)
                for each in moved:
                    each.host = like(each.device, flat)
        self._point(block, lambda moved: moved.host)

    def unpack(self, block: Block) -> None:
        """Let the host copy be read and written in place, for good."""
        if block.encoded:
            assert self._pager is not None
            host = self._pager.unpack(block.address, block.nbytes)
            with torch.inference_mode(False):
                block.host_bytes = self._bytes(host, block.nbytes, _CPU)
            block.encoded = False

    @contextmanager
    def in_reach(self) -> Iterator[None]:
        """Where the tensors that others are made of can be read, from anywhere."""
        blocks = [
            block
            for block in self.blocks
            if block.home is Home.PAGED and any(slot.wrapper is not None for slot in block.slots)
        ]
        for block in blocks:
            self.to_host(block)
        try:
            yield
        finally:
            for block in blocks:
                self.to_device(block)

    def at_host(self, block: Block, view: torch.Tensor) -> torch.Tensor:
        """The same view of the block, of the host copy, where its tensors lie now."""
        host = self._moved[block][0].host
        assert host is not None
        with torch.inference_mode(False):
            return like(view, bytes_of(host))

    def to_device(self, block: Block, *, aliases: int = 0) -> bool:
        """Let the block's tensors lie at their device address.

        What was given other data meanwhile (``weight.data = x``) takes them in, where they are of
        the same kind, it shares the block with no other, and nobody else has those data, nor what
        lies at the host copy; else it is the user's from now on.

        Args:
            block: A paged block.
            aliases: What host_aliases() told when nobody else had any.

        Returns:
            Whether the host copy has other content by that.
        """
        moved, taken = self._moved[block], False
        if len(moved) == 1 and not self._is_ours(block, moved[0].tensor):
            given, host = moved[0].tensor.data, moved[0].host
            if (
                host is not None
                and _kind(given) == _kind(host)
                and _users(given) <= 2
                and self.host_aliases(block) <= aliases
            ):
                host.copy_(given)
                moved[0].tensor.data, taken = host, True
        self._point(block, lambda moved: moved.device)
        return taken

    def take_in(self, block: Block, slot: Slot) -> bool:
        """Let other data that the tensor was given (``weight.data = x``) be its content.

        The block is in use, and written. Not where the data are of another kind, or others have
        them too, who would find what is written there.

        Returns:
            Whether they are.
        """
        given, moved = slot.tensor.data, self._moved[block]
        own = moved[0].device
        whole = given.nbytes == given.untyped_storage().nbytes()
        if len(moved) > 1 or _kind(given) != _kind(own) or not whole or _users(given) > 2:
            return False
        own.copy_(given)
        slot.tensor.data = own
        return True

    def refresh(self, block: Block) -> None:
        """Copy the host copy to those pages that are on the device; the others come from there."""
        assert self._pager is not None
        assert block.host_bytes is not None
        assert block.device_bytes is not None
        for page in self.pages(block.address, block.nbytes):
            start = max(page - block.address, 0)
            end = min(page + self.chunk - block.address, block.nbytes)
            if not self._pager.is_resident(block.address + start):
                continue
            self._pager.fetch(block.address + start, end - start)  # waits for its uses
            # Not in sight of vmap() and its like, nor of modes: of the watch it would be a miss.
            with temporarily_clear_interpreter_stack(), _disable_current_modes():
                block.device_bytes[start:end].copy_(block.host_bytes[start:end])
        if self.device != _CPU:
            torch.cuda.synchronize(self.device)

    def pages(self, address: int, nbytes: int) -> range:
        """The addresses of the pages that a part of a paged range lies in."""
        base = next(start for start, size in self._ranges if start <= address < start + size)
        first = address - (address - base) % self.chunk
        return range(first, address + nbytes, self.chunk)

    def host_aliases(self, block: Block) -> int:
        """How many tensors but its own lie over the block's host copy, as the device sees it."""
        host = self._moved[block][0].host
        if host is None:
            return 0
        at = host.untyped_storage().data_ptr()
        own = (moved.tensor.untyped_storage() for moved in self._moved[block])
        return _users(host) - sum(storage.data_ptr() == at for storage in own)

    def version(self, block: Block) -> int:
        """A number that grows when a tensor of the block is changed in place, but by ``.data``."""
        moved = self._moved[block]  # what was made in inference mode has none
        return sum(each.tensor._version for each in moved if not each.device.is_inference())

    def tensors(self, block: Block) -> list[torch.Tensor]:
        """The block's tensors, each once."""
        return [moved.tensor for moved in self._moved[block]]

    def is_in_place(self, block: Block, slot: Slot) -> bool:
        """Whether the module still has the tensor that was attached, with the data it got."""
        known = dict.get(slot.table, slot.key)  # a table's own get() would tell of it
        return known is slot.tensor and self._is_ours(block, slot.tensor)

    def _is_ours(self, block: Block, tensor: torch.Tensor) -> bool:
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return False
        at = tensor.untyped_storage().data_ptr()
        host = block.host_bytes
        return at == block.address or (host is not None and at == host.data_ptr())

    def _point(self, block: Block, data: Callable[[_Moved], torch.Tensor | None]) -> None:
        for moved in self._moved[block]:
            if self._is_ours(block, moved.tensor):
                self._follow(block, moved)
                target = data(moved)
                assert target is not None
                moved.tensor.data = target

    def _follow(self, block: Block, moved: _Moved) -> None:
        """What was given another view of its own bytes, as by ``weight.t_()``, keeps that."""
        tensor, known, at = moved.tensor, moved.device, int(moved.tensor.storage_offset())
        needed = compute_required_storage_length(tensor.shape, tensor.stride(), at)
        same = _kind(tensor) == _kind(known) and at == known.storage_offset()
        if same or needed * tensor.itemsize > block.nbytes:  # after a resize_() that failed
            return
        with torch.inference_mode(False), temporarily_clear_interpreter_stack():
            assert block.device_bytes is not None
            moved.device = like(tensor, block.device_bytes)
            if moved.host is not None:
                moved.host = self.at_host(block, tensor)

    # ---- Moving in -------------------------------------------------------------------------

    def _place(self, blocks: list[Block], load: Loader | None, home: Home) -> None:
        assert self._pager is not None
        size = sum(align(block.nbytes) for block in blocks)
        if self._check_host and self._encode and any(map(self._encode, blocks)):
            self._check_host(2 * size)  # as they are, and their codes beside them
        made = self._pager.create_range(size, _FLAGS[home])
        if home is Home.PAGED:
            self._ranges.append((made.address, size))
        self._lay(blocks, load, address=made.address, host=made.host)
        if home is Home.PAGED:
            self._pack(blocks)
        if home is Home.PINNED:
            self._pager.fetch(made.address, size)

    def _lay(self, blocks: list[Block], load: Loader | None, *, address: int, host: int) -> None:
        """Fill blocks one behind the other, from host address `host`; `address` is the device's."""
        for block in blocks:
            block.address = address
            block.host_bytes = self._bytes(host, block.nbytes, _CPU)
            self._fill(block, load)
            block.device_bytes = self._bytes(address, block.nbytes, self.device)
            self._enter(block)
            if (moved_in := MOVED_IN.get()) is not None:
                moved_in(block.nbytes)
            address += align(block.nbytes)
            host += align(block.nbytes)

    def _pack(self, blocks: list[Block]) -> None:
        """Encode on the host what may be, unless a loader has kept what it was to fill."""
        if self._encode is None or not any(map(self._encode, blocks)):
            return
        if any(_users(block.host_bytes) > 1 for block in blocks):
            return
        assert self._pager is not None
        hosts = self._pager.pack(
            [(block.address, block.nbytes, self._encode(block)) for block in blocks]
        )
        for block, host in zip(blocks, hosts, strict=True):
            block.encoded = host is None
            block.host_bytes = None if host is None else self._bytes(host, block.nbytes, _CPU)

    def _bytes(self, address: int, size: int, device: torch.device) -> torch.Tensor:
        flat = bytes_at(address, size, device)
        self.storages.append(StorageWeakRef(flat.untyped_storage()))
        return flat

    @staticmethod
    def _fill(block: Block, load: Loader | None) -> None:
        first = block.slots[0]
        assert block.host_bytes is not None
        if first.tensor.device.type != "meta":
            block.host_bytes.copy_(bytes_of(first.tensor))
            return
        if load is None:
            raise UsageError(
                f"{first.name} is on the meta device and has no content",
                remedy="attach(model, load=...) with a function that fills it; where an offloader "
                "has taken it away, attach() before that does",
            )
        seen: set[int] = set()
        for slot in block.slots:
            if id(slot.tensor) not in seen:
                seen.add(id(slot.tensor))
                _load(slot, block.host_bytes, load)

    def _enter(self, block: Block) -> None:
        """Let every tensor of the block lie at its device address."""
        assert block.device_bytes is not None
        entries: dict[int, _Moved] = {}
        for slot in block.slots:
            before = slot.tensor
            if id(before) not in entries:
                data = like(before, block.device_bytes)
                entries[id(before)] = _Moved(_with_data(slot, data), before, data)
            slot.table[slot.key] = slot.tensor = entries[id(before)].tensor
        self._moved[block] = list(entries.values())


def _users(flat: torch.Tensor | None) -> int:
    """How many tensors lie over the same memory."""
    assert flat is not None
    # One for the storage's own handle, which asking makes.
    return int(torch._C._storage_Use_Count(flat.untyped_storage()._cdata)) - 1


def _take_along(flats: dict[int, torch.Tensor]) -> None:
    """Let views that the program has kept, over device memory that goes, lie in these bytes."""
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and has_storage(each):
            flat = flats.get(each.untyped_storage()._cdata)
            if flat is not None:
                each.data = like(each, flat)


def _load(slot: Slot, flat: torch.Tensor, load: Loader) -> None:
    """Have one tensor filled; a loader that leaves its first element as it was has not.

    Whatever the mark, some checkpoint has it there: only one that is left twice, with another mark
    the second time, was left.
    """
    size = slot.tensor.element_size()
    start = int(slot.tensor.storage_offset()) * size
    first = flat[start : start + size]
    for mark in _MARKS:
        first.fill_(mark)
        load(slot.name, like(slot.tensor, flat))
        if slot.tensor.numel() == 0 or not bool((first == mark).all()):
            return
    raise UsageError(
        f"load() left {slot.name} as it was", remedy="fill the destination: destination.copy_(...)"
    )


def _with_data(slot: Slot, data: torch.Tensor) -> torch.Tensor:
    """The slot's tensor with new data: the same object, or a new one in place of a meta one."""
    if slot.tensor.device.type != "meta":
        slot.tensor.data = data
        return slot.tensor
    if slot.is_parameter and slot.wrapper is None and slot.holder is None:
        return nn.Parameter(data, requires_grad=slot.tensor.requires_grad)
    return data
