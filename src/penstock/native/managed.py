# SPDX-License-Identifier: Apache-2.0
"""Managed memory of a device, group by group."""

from __future__ import annotations

from collections.abc import Sequence

from .api import new, new_array
from .device import Device
from .handle import Paging
from .library import check

EVICTION = {"collapse": 0, "to_host": 1}


class ManagedSet(Paging):
    """Groups of managed memory on a device; see penstock.h for what each call does.

    Args:
        device: The open device; it must outlive the set.
        groups: (bytes, flags) of each group; flags are 0 or ON_HOST.
        budget: Bytes of device memory for the groups.
        look_ahead: Groups on their way beyond the one in use.
        streams: Streams that prefetches take in turn; 0 = the default stream.
        max_in_flight: Bytes of prefetches at a time; 0 = no bound beside the budget.
        eviction: "collapse" or "to_host".
        read_mostly: Keep the host's copy while a group is on the device.
        on_demand: Leave the paging to the driver: groups have no uses.
        allow_oversubscription: Whether groups and budget may exceed the device's free memory.
        profile_every: Time the stalls of every Nth iteration; 0 = never.

    Attributes:
        device: The first argument.
        addresses: Of each group, for the host and the device alike.
    """

    _prefix, _gone = "penstock_managed", "the managed memory has been freed"
    _stats = "managed_stats"

    def __init__(
        self,
        device: Device,
        groups: Sequence[tuple[int, int]],
        *,
        budget: int,
        look_ahead: int = 2,
        streams: int = 3,
        max_in_flight: int = 0,
        eviction: str = "collapse",
        read_mostly: bool = True,
        on_demand: bool = False,
        allow_oversubscription: bool = False,
        profile_every: int = 8,
    ) -> None:
        super().__init__()
        self.device = device
        options = new(
            "managed_options",
            budget=budget,
            max_in_flight_bytes=max_in_flight,
            look_ahead=look_ahead,
            streams=streams,
            eviction=EVICTION[eviction],
            read_mostly=read_mostly,
            on_demand=on_demand,
            allow_oversubscription=allow_oversubscription,
            profile_every=profile_every,
        )
        array = new_array("managed_group", [(n, 0, flags) for n, flags in groups])
        create = self._lib.penstock_managed_create
        self._open(create, device.handle, options, array, len(groups))
        self.addresses = [int(group.address) for group in array]

    def begin(self, group: int, stream: int = 0) -> None:
        """The group is needed by what `stream` is given from here on."""
        check(self._lib.penstock_managed_begin(self.handle, group, stream))

    def end(self, group: int, stream: int = 0) -> None:
        """`stream` has been given all that reads the group."""
        check(self._lib.penstock_managed_end(self.handle, group, stream))

    def iteration(self, kind: int = 0, work: int = 0) -> None:
        """The uses since the last call were one iteration, of whatever kind."""
        check(self._lib.penstock_managed_iteration(self.handle))
