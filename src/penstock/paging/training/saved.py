# SPDX-License-Identifier: Apache-2.0
"""Tensors that autograd has saved, as blocks: one a storage, wherever its bytes are.

A block leaves only while nothing but saved tensors refers to its storage. Then it frees memory, and
no write can come that the copy would miss: a copy is never stale, whatever the program does. The
views that were saved are built anew on the storage that comes back.

PyTorch leaves it to hooks to notice that a saved tensor has been changed in place, so every saved
tensor carries the version that it was saved at, and gives PyTorch's error if it has another when
backward asks for it.

Thread rule: one thread at a time, but any may drop the last reference to a block.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..dlpack import bytes_of
from .copies import Copies
from .host_buffers import HostBuffer, HostBuffers

_uses_of: Callable[[int], int] = torch._C._storage_Use_Count  # type: ignore[attr-defined]


def _uses_besides() -> int:
    """References that a storage has besides its tensors, once it is known to Python."""
    tensor = torch.empty(1, device="cpu")
    return _uses_of(tensor.untyped_storage()._cdata) - 1


_BESIDES = _uses_besides()


class Saved:
    """One tensor as autograd has saved it.

    Attributes:
        tensor: It, detached; None while its block is away.
        version: That `tensor` must have; None if it may have any.
        block: What it lies in; None of what always stays.
        layout: (dtype, sizes, strides, offset) within the block.
    """

    __slots__ = ("__weakref__", "block", "changed", "layout", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, block: Block | None, *, checked: bool = True) -> None:
        self.version = tensor._version if checked else None
        self.tensor: torch.Tensor | None = tensor.detach()
        self.block = block
        self.changed: int | None = None  # the version at which its block left, if it was another
        if block is not None:
            self.layout = tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()
            block.saved.append(weakref.ref(self))

    def leave(self) -> None:
        """Its block leaves."""
        assert self.tensor is not None
        if self.version is not None and self.tensor._version != self.version:
            self.changed = self.tensor._version
        self.tensor = None

    def get(self) -> torch.Tensor:
        """The tensor; its block is there.

        Raises:
            RuntimeError: PyTorch's own, if it was changed in place.
        """
        if self.changed is not None:
            raise self._error(self.changed)
        if self.block is not None:
            self.block.wait()
        if self.tensor is None:
            assert self.block is not None
            self.tensor = self.block.view(self.layout)
            if self.version is not None:
                self.version = self.block.version
        if self.version is not None and self.tensor._version != self.version:
            raise self._error(self.tensor._version)
        return self.tensor

    def _error(self, found: int) -> RuntimeError:
        if self.block is None:
            assert self.tensor is not None
            kind, sizes = self.tensor.dtype, list(self.tensor.shape)
        else:
            kind, sizes = self.layout[0], list(self.layout[1])
        return RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{kind} {sizes}] is at version {found}; expected version {self.version} "
            "instead. Hint: enable anomaly detection to find the operation that failed to compute "
            "its gradient, with torch.autograd.set_detect_anomaly(True)."
        )


class Block:
    """A storage that saved tensors lie in.

    Attributes:
        number: By when it was saved last: in backward it is needed before those of lower ones.
        nbytes: Of the storage.
        version: That views built on what came back begin with.
        saved: The tensors that lie in it.
        away: Whether its bytes are on the host alone.
        back: Whether those on the device came from there.
        used: The backward pass that has asked for it last.
        again: Whether a recomputation has saved it.

    Args:
        storage: It.
        number: See above.
        source: The stream in which it is saved.
        copies: Carry its bytes.
        buffers: Where they are kept.
        ended: Called with the block's bytes, and those of them that are on the device, when its
            last tensor goes; by any thread.
    """

    __slots__ = (
        "__weakref__",
        "_arriving",
        "_buffer",
        "_buffers",
        "_content",
        "_copies",
        "_ended",
        "_key",
        "_source",
        "_typed",
        "_written",
        "again",
        "away",
        "back",
        "nbytes",
        "number",
        "saved",
        "used",
        "version",
    )

    def __init__(
        self,
        storage: torch.UntypedStorage,
        number: int,
        source: Any,
        copies: Copies,
        buffers: HostBuffers,
        ended: Callable[[int, int], None],
    ) -> None:
        self.number = number
        self.nbytes = storage.nbytes()
        self.version = 0
        self.saved: list[weakref.ref[Saved]] = []
        self.again = self.away = self.back = False
        self.used = -1
        self._key: int = storage._cdata
        self._source = source
        self._copies = copies
        self._buffers = buffers
        self._ended = ended
        self._content: torch.Tensor | None = None  # all bytes, from the first copy on
        # Of what came back; views refer to these, which refer to its storage.
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self._buffer: HostBuffer | None = None
        self._written: Any = None  # tells of the end of the copy out
        self._arriving: Any = None  # and of the latest copy in

    def __del__(self) -> None:
        try:
            self._free()
            if self._buffer is not None:
                self._buffers.give_back(self._buffer)
            self._ended(self.nbytes, 0 if self.away else self.nbytes)
        except Exception:  # the interpreter is going
            pass

    # ---- Out -------------------------------------------------------------------------------

    def _there(self) -> list[Saved]:
        """The saved tensors that lie in its bytes on the device."""
        found = [each for each in (reference() for reference in self.saved) if each is not None]
        return [each for each in found if each.tensor is not None]

    def may_leave(self) -> bool:
        """Whether its bytes are on the device, and nothing but saved tensors refers to them."""
        if self.away or (self.back and not self._unchanged()):
            return False
        own = len(self._there()) + (self._content is not None) + len(self._typed)
        return own > 0 and _uses_of(self._key) == own + _BESIDES

    def _unchanged(self) -> bool:
        """Whether backward has written nothing into what came back."""
        return self._content is not None and self._content._version == self.version

    def start_out(self) -> None:
        """Begin to copy its bytes out, unless the host has them."""
        if self._buffer is None:
            tensor = self._there()[0].tensor
            assert tensor is not None
            buffer = self._buffers.take(self.nbytes)
            self._content = bytes_of(tensor)
            self._written = self._copies.out(self._content, buffer.content, self._source)
            self._buffer = buffer

    def finish_out(self) -> None:
        """Free its bytes on the device, in the program's stream."""
        for each in self._there():
            each.leave()
        self._free()
        self.away, self.back = True, False

    def _free(self) -> None:
        """Let go of its bytes, once the copies that are under way have been waited for."""
        if self._content is not None:
            self._copies.wait(self._content, self._arriving if self.back else self._written)
            self._content = None
            self._typed = {}
        if self.back:
            self._copies.read(self._arriving)

    # ---- In --------------------------------------------------------------------------------

    def start_in(self) -> torch.UntypedStorage:
        """Begin to copy its bytes in; where they come to lie."""
        assert self._buffer is not None
        host = self._buffer.content
        self._content, self._arriving = self._copies.into(host, self.nbytes, self._written)
        storage = self._content.untyped_storage()
        self._key = storage._cdata
        self.version = self._content._version
        self.away, self.back = False, True
        return storage

    def wait(self) -> None:
        """Its bytes are about to be used: in any stream, and each has to wait for them."""
        if self.back:
            assert self._content is not None
            self._copies.wait(self._content, self._arriving)

    def view(self, layout: tuple[Any, ...]) -> torch.Tensor:
        """A tensor of this layout on what came back."""
        assert self._content is not None
        dtype, sizes, strides, offset = layout
        if dtype not in self._typed:
            whole = self.nbytes // dtype.itemsize * dtype.itemsize
            self._typed[dtype] = self._content[:whole].view(dtype)
        return self._typed[dtype].as_strided(sizes, strides, offset)
