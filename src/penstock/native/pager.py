# SPDX-License-Identifier: Apache-2.0
"""The pager of a device."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int32, c_uint64, c_void_p
from dataclasses import dataclass

from .api import new, new_array
from .device import Device
from .handle import Paging
from .library import check

SAFETY = {"normal": 0, "strict": 1, "fast": 2}
PINNED, ON_HOST = 1, 2  # flags of a range


@dataclass(frozen=True, slots=True)
class Range:
    """Device addresses and the page-locked host copy of what lies there."""

    address: int
    host: int


class Pager(Paging):
    """A pager on a device; see penstock.h for what each call does.

    Args:
        device: The open device; it must outlive the pager.
        budget: Bytes of device memory for chunks.
        chunk_bytes: The unit of paging.
        look_ahead_bytes: Wanted in flight beyond the running use.
        max_copy_bytes: Neighbouring pages go in one copy up to this size.
        safety: "normal", "strict" or "fast".
        profile_every: Time the stalls of every Nth iteration; 0 = never.
        link_gb_per_s: Speed of copies in, measured: where compute sets the pace, plans then look
            ahead up to 4 times as far. 0 = unknown.
    """

    _prefix, _gone, _stats = "penstock_pager", "the pager has been closed", "pager_stats"

    def __init__(
        self,
        device: Device,
        *,
        budget: int,
        chunk_bytes: int,
        look_ahead_bytes: int,
        max_copy_bytes: int,
        safety: str = "normal",
        profile_every: int = 8,
        link_gb_per_s: float = 0,
    ) -> None:
        super().__init__()
        self.device = device
        self._begin, self._end = self._lib.penstock_use_begin, self._lib.penstock_use_end
        options = new(
            "pager_options",
            budget=budget,
            chunk_bytes=chunk_bytes,
            look_ahead_bytes=look_ahead_bytes,
            max_copy_bytes=max_copy_bytes,
            safety=SAFETY[safety],
            profile_every=profile_every,
            link_gb_per_s=link_gb_per_s,
        )
        self._open(self._lib.penstock_pager_create, device.handle, options)

    def create_range(self, size: int, flags: int = 0) -> Range:
        """Reserve `size` bytes of device addresses with a page-locked host copy.

        Args:
            size: Bytes.
            flags: 0 for a paged range, PINNED or ON_HOST.
        """
        made = new("range")
        check(self._lib.penstock_range_create(self.handle, size, flags, made))
        return Range(made.address, made.host or 0)

    def define_use(self, pieces: Sequence[tuple[int, int, bool]]) -> int:
        """Declare a use of (address, bytes, written) pieces; returns its number."""
        array = new_array("piece", [(a, n, int(w), 0) for a, n, w in pieces])
        use = c_int32()
        check(self._lib.penstock_use_define(self.handle, array, len(pieces), use))
        return use.value

    def begin(self, use: int, stream: int = 0) -> None:
        """The use begins: its pages are resident for what `stream` is given from here on."""
        if status := self._begin(self._handle or self.handle, use, stream):
            check(status)

    def end(self, use: int, stream: int = 0) -> None:
        """The use ends: `stream` has been given all that touches its pages."""
        if status := self._end(self._handle or self.handle, use, stream):
            check(status)

    def iteration(self, kind: int = 0, work: int = 0) -> None:
        """The uses since the last call were one iteration; one of this kind begins.

        Args:
            kind: Of equal kinds the order of uses is the same, as a rule.
            work: What tells how long it takes, such as a number of tokens; 0 = unknown.
        """
        check(self._lib.penstock_iteration(self.handle, kind, work))

    def fetch(self, address: int, size: int) -> None:
        """Bring a piece in and wait for it."""
        check(self._lib.penstock_fetch(self.handle, address, size))

    def is_resident(self, address: int) -> bool:
        """Whether the page is there in which the address lies, of a paged range."""
        resident = c_int32()
        check(self._lib.penstock_is_resident(self.handle, address, resident))
        return bool(resident.value)

    def flush(self, address: int, size: int) -> None:
        """Copy what was written in a piece back to the host and wait."""
        check(self._lib.penstock_flush(self.handle, address, size))

    def forget(self, address: int, size: int) -> None:
        """The content of a piece is not needed any more: it is not copied out, nor in."""
        check(self._lib.penstock_forget(self.handle, address, size))

    def cool(self, address: int, size: int) -> None:
        """The pages of a piece are the first to leave, until a use has them."""
        check(self._lib.penstock_cool(self.handle, address, size))

    def pack(self, blocks: Sequence[tuple[int, int, bool]]) -> list[int | None]:
        """Encode blocks of a range; where the host has them then, None where encoded.

        Args:
            blocks: All of the range, in order: (address, bytes, whether it may be encoded).
        """
        array = new_array("packing", [(a, n, int(e)) for a, n, e in blocks])
        check(self._lib.penstock_pack(self.handle, array, len(blocks)))
        return [block.host for block in array]

    def read(self, address: int, size: int, to: int) -> None:
        """Copy a block of a packed range, as the host has it, to memory at `to`."""
        check(self._lib.penstock_read(self.handle, address, size, to))

    def verify(self) -> int:
        """Check all that is encoded, on the host and on the device; bytes of it."""
        nbytes = c_uint64()
        check(self._lib.penstock_verify(self.handle, nbytes))
        return nbytes.value

    def unpack(self, address: int, size: int) -> int:
        """Let a block of a packed range lie on the host as it is; where."""
        host = c_void_p()
        check(self._lib.penstock_unpack(self.handle, address, size, host))
        assert host.value is not None
        return host.value
