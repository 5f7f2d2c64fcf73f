# SPDX-License-Identifier: Apache-2.0
"""attach_managed: a model's parameters in managed memory, moved by hand, a layer a call.

The way of unified memory without its price: a part of every layer stays on the device, the rest is
prefetched a few layers ahead and dropped, not copied back, when it has been used (managed pages
that the driver evicts go out at 17 GB/s on an H200; those it brings in by faults come at 11 GB/s).
attach() moves the same bytes faster; this is for devices, or comparisons, where managed memory is
wanted.

Thread rule: one thread at a time runs the model, as with any nn.Module in inference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from penstock.errors import OutOfMemory, UsageError
from penstock.native import EVICTION, ON_HOST, Device, ManagedSet
from penstock.units import MIB, format_bytes

from ..attached import refuse_attached
from ..attachment import BaseAttachment
from ..blocks import Block
from ..device import settle
from ..share import Share
from ..stats import explain, summarize
from ..store import Loader
from .groups import Groups, form_groups
from .hooks import GroupHooks
from .stats import ManagedStats
from .store import ManagedStore

# The library takes no more; a device gains nothing by them.
MOST_STREAMS = 64


def attach_managed(
    model: nn.Module,
    *,
    gpu_memory: int | str | None = None,
    device: str | torch.device | None = None,
    load: Loader | None = None,
    prefetch: bool = True,
    num_streams: int = 3,
    look_ahead_layers: int = 2,
    eviction: str = "collapse",
    read_mostly: bool | None = None,
    max_in_flight: int = 0,
    allow_oversubscription: bool = False,
    host_memory: int | str | None = None,
    emulated: dict[str, int] | None = None,
) -> ManagedAttachment:
    """Run a model from managed memory, within a budget of device memory.

    Inference only, as with attach(). What is left out of gpu_memory, device and host_memory is
    decided by PENSTOCK_* variables, then by penstock.toml.

    Args:
        model: Any module; on the CPU, on the device, or on "meta" (then `load` fills it).
        gpu_memory: The budget: bytes, "8GiB" or "80%" of the device; default 90 % of what is free.
        device: "auto" (CUDA where there is one), "cuda", "cuda:N" or "emulated".
        load: Called as load(name, destination) once for each tensor of a model on "meta", with a
            CPU tensor of its shape and dtype to fill.
        prefetch: Keep residency in our own hands. False leaves it to the driver, which brings
            pages in by faults and knows no budget; then only advice is given, and no counts of
            bytes are to be had.
        num_streams: Streams that prefetches take in turn; 0 = the default stream.
        look_ahead_layers: Layers on their way beyond the running one.
        eviction: "collapse" drops the device's duplicate; "to_host" prefetches to the host.
        read_mostly: Keep the host's copy while a layer is on the device; default for "collapse",
            which needs it.
        max_in_flight: Bytes of prefetches at a time; 0 = no bound beside the budget.
        allow_oversubscription: Let parameters or budget exceed the device's free memory. Some
            drivers hang the GPU, for everyone, when managed memory is oversubscribed.
        host_memory: Most host memory to use; default what is available.
        emulated: Options of the emulated GPU: capacity, granularity, seed, max_delay_us, ...

    Returns:
        The attachment; its detach() gives an ordinary model back.

    Raises:
        OutOfMemory: If the device, the budget or the host cannot hold what must be held.
        UsageError: If an argument makes no sense, or the model is attached already.
        EnvironmentProblem: If the device is not there, or cannot move managed memory.
    """
    refuse_attached(model)
    if eviction not in EVICTION:
        raise UsageError(f"eviction '{eviction}' is unknown", remedy=" or ".join(EVICTION))
    if num_streams < 0 or look_ahead_layers < 0 or max_in_flight < 0:
        raise UsageError(
            f"{num_streams} streams, {look_ahead_layers} layers ahead and {max_in_flight} bytes in "
            "flight: none may be below 0"
        )
    if num_streams > MOST_STREAMS:
        raise UsageError(f"{num_streams} streams are too many", remedy=f"{MOST_STREAMS} or fewer")
    opened, torch_device, settings = settle(
        emulated, gpu_memory=gpu_memory, device=device, host_memory=host_memory
    )
    return ManagedAttachment(
        model,
        opened,
        torch_device,
        load=load,
        **settings,
        allow_oversubscription=allow_oversubscription,
        options={
            "look_ahead": look_ahead_layers,
            "streams": num_streams,
            "max_in_flight": max_in_flight,
            "eviction": eviction,
            "read_mostly": eviction == "collapse" if read_mostly is None else read_mostly,
            "on_demand": not prefetch,
        },
    )


class GroupSet(ManagedSet):
    """A managed set whose figures have the names of a pager's, groups for pages."""

    def stats(self) -> dict[str, Any]:
        """All of ManagedSet.stats(), and what summaries ask for."""
        stats = super().stats()
        stats.update(
            pages=stats["groups"],
            kept_pages=stats["kept_groups"],
            streamed_pages=stats["groups"] - stats["kept_groups"],
            stream_slots=stats["look_ahead"] + 1,
            page_uses=stats["group_uses"],
            page_hits=stats["group_hits"],
            iteration_page_uses=stats["iteration_group_uses"],
            iteration_page_loads=stats["iteration_group_uses"] - stats["iteration_group_hits"],
            paged_bytes=stats["managed_bytes"],
            pinned_bytes=0,
            host_bytes=0,
            largest_stall_use=stats["largest_stall_group"],
        )
        return stats


class ManagedAttachment(BaseAttachment[GroupSet]):
    """A model whose parameters lie in managed memory. Made by attach_managed().

    Attributes:
        on_demand: The driver pages by faults, and nothing is known of what it does.
    """

    hooks: GroupHooks

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        torch_device: torch.device,
        *,
        allow_oversubscription: bool,
        options: dict[str, Any],
        **more: Any,
    ) -> None:
        self._oversubscribe = allow_oversubscription
        self._options = options
        self.on_demand = bool(options["on_demand"])
        self._groups = Groups()
        super().__init__(model, device, torch_device, **more)

    def _place(self, blocks: list[Block]) -> tuple[GroupSet, ManagedStore]:
        self._groups = form_groups(self.model, blocks)
        self._grain = self.device.info()["granularity"]
        sizes = [
            -(-group.nbytes // self._grain) * self._grain
            for group in self._groups.groups
            if not group.on_host
        ]
        self._check_groups(sizes)
        self._look_ahead = max(0, self._options["look_ahead"] - 1) * max(sizes, default=0)
        managed = GroupSet(
            self.device,
            [(group.nbytes, ON_HOST if group.on_host else 0) for group in self._groups.groups],
            budget=self.budget,
            allow_oversubscription=self._oversubscribe,
            **self._options,
        )
        return managed, ManagedStore(self._groups, managed.addresses, self.torch_device)

    def _make_hooks(self, blocks: list[Block]) -> GroupHooks:
        groups = Groups(self._groups.groups) if self.on_demand else self._groups
        return GroupHooks(groups, self.pager, self._stream)

    def _whole(self, stats: dict[str, Any]) -> int:
        return int(stats["managed_bytes"])

    def _tables_may_stay(self) -> bool:
        return not self.on_demand

    # ---- Sizes -----------------------------------------------------------------------------

    def _check_budget(self, free: int) -> None:
        if not self._oversubscribe:
            super()._check_budget(free)

    def _check_groups(self, sizes: list[int]) -> None:
        """Refuse early, with a remedy, what the library would refuse."""
        total, free = sum(sizes), self.device.memory()[0]
        if total > free and not self._oversubscribe:
            raise OutOfMemory(
                f"{format_bytes(total)} of managed memory would oversubscribe the "
                f"{format_bytes(free)} that are free on the device, which hangs the GPU with some "
                "drivers",
                remedy="attach(), which pages without it, or allow_oversubscription=True",
                needed_bytes=total,
                budget_bytes=free,
            )
        smallest = sum(sorted(sizes)[-2:])
        if smallest > self.budget and not self.on_demand:
            raise OutOfMemory(
                f"a budget of {format_bytes(self.budget)} is below the smallest that works, "
                f"{format_bytes(smallest)} for the two largest layers",
                remedy=f'gpu_memory="{-(-smallest // MIB)}MiB", or attach()',
                needed_bytes=smallest,
                budget_bytes=self.budget,
            )

    def _enter_budget(self) -> None:
        if self.on_demand:  # which knows none
            self._share = Share(self.manager, self.pager, self.budget, type(self.model).__name__)
        else:
            super()._enter_budget()

    def _size(self, name: str, tensors: list[torch.Tensor]) -> None:
        if self.on_demand:
            self._passing = (name,), 0
        else:
            super()._size(name, tensors)

    def _first(self) -> int:
        return super()._first() if self.manager.torch.cuda else self.budget

    def _follow_tensors(self) -> None:
        """Not on the emulated GPU, where `gpu_memory` is for groups alone."""

    def _pass_ends(self) -> None:
        super()._pass_ends()
        stats = self.pager.stats()
        if stats["device_bytes"] == stats["managed_bytes"]:
            self.hooks.disarm()

    # ---- What happened ---------------------------------------------------------------------

    def stats(self) -> ManagedStats:
        """As those of attach(), groups for pages and the hit ratio by bytes.

        On demand nothing is known of what moves: all counts are 0, the hit ratio as well.
        """
        stats = summarize(self, ManagedStats)
        if not self.hooks.armed:  # everything stays, and passes are not even followed
            stats = replace(
                stats, iteration_bytes_in=0, iteration_bytes_out=0, iteration_page_loads=0
            )
        total = stats.managed_bytes
        moved = total if self.on_demand else min(total, stats.iteration_bytes_in)
        return replace(stats, hit_ratio=1.0 - moved / total if total else 1.0)

    def explain(self) -> str:
        """One line: why the last passes were as fast or slow as they were."""
        if not self.on_demand:
            return explain(self.stats())
        return (
            f"the driver pages {format_bytes(self.weight_bytes)} on demand, by faults: it knows no "
            "budget and does not tell what it moves"
        )
