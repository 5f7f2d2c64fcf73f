# SPDX-License-Identifier: Apache-2.0
"""The library's entry points for torch, and the allocators behind them, one a device.

Invariant: an allocator is made by the first allocation on its device and lives as long as the
process, so its pointer, once seen, stays good. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint64, c_void_p, cast, pointer
from typing import Any

from .api import INTERFACE, new, new_array
from .library import check, library

# Setter of torch's allocator object -> our entry point; the constructor takes the first two.
CONSTRUCTOR = ("penstock_torch_alloc", "penstock_torch_free")
SETTERS = {
    "set_init_fn": "penstock_torch_init",
    "set_reset_fn": "penstock_torch_reset",
    "set_memory_fraction_fn": "penstock_torch_memory_fraction",
    "set_base_alloc_fn": "penstock_torch_base_alloc",
    "set_record_stream_fn": "penstock_torch_record_stream",
    "set_begin_allocate_to_pool": "penstock_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "penstock_torch_end_pool",
    "set_release_pool": "penstock_torch_release_pool",
}
POOL_CONSTRUCTOR = ("penstock_torch_alloc_or_null", "penstock_torch_free")
ERROR_KINDS = ("RuntimeError", "torch.OutOfMemoryError", "torch.OutOfMemoryError")


# Callbacks that the library may still call are never given up: a thread may be on its way in.
_kept: list[Any] = []


def configure(
    *,
    kind: int = 0,
    device: dict[str, int] | None = None,
    budget: int = 0,
    budget_share: float = 0.0,
    **options: int | float,
) -> str:
    """Set what every allocator will be made with; call it after torch has been imported.

    Args:
        kind: CUDA or EMULATED.
        device: Further fields of penstock_device_options.
        budget: Bytes a device; 0 = by `budget_share`.
        budget_share: Of the device's memory; 0 = all of it.
        options: Further fields of penstock_allocator_options.

    Returns:
        The name of the exception that running out of memory raises.

    Raises:
        UsageError: If memory has been allocated already.
    """
    of_device = new("device_options", kind=kind, **(device or {}))
    of_allocator = new("allocator_options", budget=budget, **options)
    wanted = new(
        "torch_options",
        device=pointer(of_device),
        allocator=pointer(of_allocator),
        budget_share=budget_share,
    )
    lib = library()
    check(lib.penstock_torch_configure(wanted))
    return ERROR_KINDS[lib.penstock_torch_error_kind()]


def entry_point(name: str) -> int:
    """The address of an exported function."""
    return cast(getattr(library(), name), c_void_p).value or 0


def observe_out_of_memory(observer: Callable[[int, int, int, int], None] | None) -> None:
    """Call `observer(device, bytes, device_total, device_free)` before each such error."""
    kind = INTERFACE.callbacks["penstock_torch_observer"]
    callback = kind(observer) if observer else kind()
    _kept.append(callback)
    library().penstock_torch_observe_out_of_memory(callback)


def empty_cache() -> None:
    """Give all free chunks of all devices back."""
    library().penstock_torch_reset()


def record_history(capacity: int, context: Callable[[int], int] | None) -> None:
    """Keep the last `capacity` events of each allocator, those yet to be made included.

    Args:
        capacity: Events; 0 ends it.
        context: Called with the kind of each event, on the thread that it happens on; what it
            returns is kept with the event.
    """
    kind = INTERFACE.callbacks["penstock_context_callback"]
    callback = kind()
    if context is not None:
        wanted = context
        callback = kind(lambda event, _: wanted(event))
    _kept.append(callback)
    check(library().penstock_torch_record_history(capacity, callback, None))


class TorchAllocator:
    """The allocator of one device.

    Args:
        device: torch's number of it.
    """

    def __init__(self, device: int) -> None:
        self._lib = library()
        self._device = device

    @property
    def _handle(self) -> c_void_p | None:
        handle = c_void_p()
        check(self._lib.penstock_torch_allocator(self._device, handle))
        return handle if handle.value else None

    def stats(self) -> Any:
        """Its counters, a penstock_allocator_stats; all 0 before the first allocation."""
        stats = new("allocator_stats")
        if handle := self._handle:
            check(self._lib.penstock_allocator_get_stats(handle, stats))
        return stats

    def reset_peaks(self) -> None:
        """Let the peaks begin anew at what is current."""
        if handle := self._handle:
            check(self._lib.penstock_allocator_reset_peaks(handle))

    def reset_accumulated(self) -> None:
        """Set what has been counted since the beginning to 0."""
        if handle := self._handle:
            check(self._lib.penstock_allocator_reset_accumulated(handle))

    def pieces(self) -> list[Any]:
        """All its device memory, each a penstock_piece_info, ordered by address."""
        return self._listed(self._lib.penstock_allocator_pieces, "piece_info")

    def history(self) -> list[Any]:
        """The events kept, each a penstock_history_event, oldest first."""
        return self._listed(self._lib.penstock_allocator_history, "history_event")

    def _listed(self, call: Any, kind: str) -> list[Any]:
        """What a counting call has to say; it may grow between two calls."""
        handle = self._handle
        if handle is None:
            return []
        count, capacity = c_uint64(), 0
        while True:
            items = new_array(kind, capacity)
            check(call(handle, items, capacity, count))
            if count.value <= capacity:
                return list(items[: count.value])
            capacity = count.value + count.value // 8
