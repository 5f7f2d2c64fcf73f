# SPDX-License-Identifier: Apache-2.0
"""What the counters of managed memory amount to."""

from __future__ import annotations

from dataclasses import dataclass

from ..stats import BaseStats


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedStats(BaseStats):
    """Counters and sizes of what attach_managed() made; a page is a group, a layer's parameters.

    hit_ratio is by bytes.

    Attributes:
        evicted_bytes: Bytes of groups that left the device since attach().
        prefetches: Calls that brought groups in.
        evictions: Groups that left, each time that one did.
        group_uses: Groups that were needed, each time that one was.
        group_hits: Those that were there.
        stalls: Uses that waited.
        managed_bytes: Bytes of managed memory that come and go.
        host_only_bytes: Bytes that stay on the host.
        groups: Groups that come and go.
        kept_groups: Groups that stay.
        kept_bytes: Bytes that stay, parts of groups included.
        iteration_group_uses: Groups that were needed in the last pass.
        iteration_group_hits: Those that were there.
        iteration_stalls: Uses of the last pass that waited.
        largest_stall_group: The number of the group that was waited for the longest; -1: none.
        look_ahead: Groups on their way beyond the one in use.
        floor_ms: As ideal_ms, of what a pass must have in device memory: tables on the host do not
            count.
    """

    evicted_bytes: int
    prefetches: int
    evictions: int
    group_uses: int
    group_hits: int
    stalls: int
    managed_bytes: int
    host_only_bytes: int
    groups: int
    kept_groups: int
    kept_bytes: int
    iteration_group_uses: int
    iteration_group_hits: int
    iteration_stalls: int
    largest_stall_group: int
    look_ahead: int
    floor_ms: float
