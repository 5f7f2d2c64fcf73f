# SPDX-License-Identifier: Apache-2.0
"""What the counters of an attachment amount to, in numbers and in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.bound import shortest_ms
from penstock.units import format_bytes

if TYPE_CHECKING:
    from .attachment import BaseAttachment


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseStats:
    """Counters and sizes of one attachment, at one moment.

    A pass is a forward, or a step in training; what is "of the last pass" is of the last that was
    over. Where the driver pages managed memory on demand, what moves is not known, and is 0.

    Attributes:
        bytes_in: Bytes copied to the device since attach().
        bytes_out: Bytes copied out since attach().
        page_uses: Pages that uses needed since attach(), each time that one did.
        page_hits: Those that were there.
        iterations: Passes that the pager was told of.
        plans: Plans that were made.
        mismatches: Uses that came in another order than that planned.
        budget: Bytes of device memory that blocks may take now.
        device_bytes: Bytes of device memory that they take.
        peak_device_bytes: The most that they took since attach().
        pinned_bytes: Bytes of blocks that always stay.
        host_bytes: Bytes of page-locked host memory.
        paged_bytes: Bytes of blocks that come and go.
        pages: Units in which they do.
        kept_pages: Pages that stay through the planned pass.
        streamed_pages: Pages that do not.
        stream_slots: Chunks of device memory that those pass through.
        planned_bytes_in: Bytes that a planned pass copies in, at the most.
        iteration_bytes_in: Bytes copied in, in the last pass.
        iteration_bytes_out: Bytes copied out, in the last pass.
        iteration_page_uses: Pages that uses needed in the last pass.
        iteration_page_loads: Pages that came in, in the last pass.
        profiled_iterations: Passes whose times were taken.
        profiled_ms: Milliseconds of the last of them.
        stall_ms: Milliseconds of it spent waiting for pages.
        largest_stall_ms: Milliseconds of its longest wait.
        largest_stall_use: The number of the use that waited; -1 where none did.
        largest_stall_module: The path of that use's module.
        weight_bytes: Bytes of parameters and buffers.
        gpu_memory_bytes: The budget, in bytes, for all that is on the device.
        passes: Forward passes.
        hit_ratio: The share of the last pass's page uses that needed no copy, 0 to 1.
        compute_ms: Milliseconds of the profiled pass, less its stalls.
        link_gb_per_s: Speed of page-locked copies to the device, measured, decimal GB/s.
        link_out_gb_per_s: Speed of those out of it.
        ideal_ms: Milliseconds that a pass cannot do without: computing, or copying what the blocks'
            budget has no room for, whichever takes longer.
    """

    bytes_in: int
    bytes_out: int
    page_uses: int
    page_hits: int
    iterations: int
    plans: int
    mismatches: int
    budget: int
    device_bytes: int
    peak_device_bytes: int
    pinned_bytes: int
    host_bytes: int
    paged_bytes: int
    pages: int
    kept_pages: int
    streamed_pages: int
    stream_slots: int
    planned_bytes_in: int
    iteration_bytes_in: int
    iteration_bytes_out: int
    iteration_page_uses: int
    iteration_page_loads: int
    profiled_iterations: int
    profiled_ms: float
    stall_ms: float
    largest_stall_ms: float
    largest_stall_use: int
    largest_stall_module: str
    weight_bytes: int
    gpu_memory_bytes: int
    passes: int
    hit_ratio: float
    compute_ms: float
    link_gb_per_s: float
    link_out_gb_per_s: float
    ideal_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerStats(BaseStats):
    """What a pager that remaps counts besides.

    Attributes:
        prefetched_pages: Pages that came in ahead of their use.
        demanded_pages: Pages that came in when their use began.
        map_calls: Calls of the driver that mapped pages.
        unmap_calls: Calls that unmapped them.
        copies: Copies between host and device; one may hold several pages.
        slots: Chunks of device memory that there is room for.
        encoded_bytes: Bytes of blocks that lie encoded on the host.
        code_bytes: Bytes that they take there, and on the link.
    """

    prefetched_pages: int
    demanded_pages: int
    map_calls: int
    unmap_calls: int
    copies: int
    slots: int
    encoded_bytes: int
    code_bytes: int

    @property
    def code_ratio(self) -> float:
        """How many bytes a byte of code stands for; 1 where nothing is encoded."""
        return self.encoded_bytes / self.code_bytes if self.code_bytes else 1.0

    @property
    def host_saved_bytes(self) -> int:
        """Bytes of page-locked host memory that codes save."""
        return self.encoded_bytes - self.code_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(PagerStats):
    """Counters and sizes of what attach() made.

    Attributes:
        floor_ms: As ideal_ms, of what a pass must have in device memory: tables on the host do not
            count.
        in_place_bytes: Rows of experts and tied tables that the last pass read at their host
            copies, over the link; of tables at the most.
    """

    floor_ms: float
    in_place_bytes: int


StatsT = TypeVar("StatsT", bound=BaseStats)


def figures(attachment: BaseAttachment[Any]) -> dict[str, Any]:
    """The pager's counters, and what they mean whatever the attachment is for."""
    stats = attachment.pager.stats()
    link_in, link_out = attachment.link()
    uses = stats["iteration_page_uses"]
    return {
        **stats,
        "weight_bytes": attachment.weight_bytes,
        "gpu_memory_bytes": attachment.budget,
        "passes": attachment.passes,
        "hit_ratio": 1.0 - stats["iteration_page_loads"] / uses if uses else 1.0,
        "compute_ms": max(0.0, stats["profiled_ms"] - stats["stall_ms"]),
        "link_gb_per_s": link_in,
        "link_out_gb_per_s": link_out,
        "largest_stall_module": attachment.hooks.name_of(stats["largest_stall_use"]),
    }


def summarize(attachment: BaseAttachment[Any], kind: Callable[..., StatsT], **more: int) -> StatsT:
    """The pager's counters, and what they mean, as statistics of this kind."""
    found = figures(attachment)

    def shortest(nbytes: int) -> float:
        crossing = attachment.must_cross(nbytes, found["budget"])
        return shortest_ms(found["compute_ms"], (crossing, found["link_gb_per_s"]))

    return kind(
        **found,
        **more,
        ideal_ms=shortest(attachment.weight_bytes),
        floor_ms=shortest(found["paged_bytes"] + found["pinned_bytes"]),
    )


def explain(stats: BaseStats) -> str:
    """One line on why the last passes took as long as they did."""
    per_pass = stats.iteration_bytes_in
    if stats.kept_pages == stats.pages and per_pass == 0:
        return (
            f"everything stays on the device: {format_bytes(stats.paged_bytes)} of blocks in "
            f"{format_bytes(stats.budget)}, nothing moved in the last pass"
        )
    in_place = stats.in_place_bytes if isinstance(stats, Stats) else 0
    parts = [
        f"{format_bytes(per_pass)} in and {format_bytes(stats.iteration_bytes_out)} out a pass",
        f"hit ratio {stats.hit_ratio:.3f}",
        *([f"{format_bytes(in_place)} read in place"] if in_place else []),
        f"link {stats.link_gb_per_s:.1f} GB/s",
    ]
    if stats.profiled_ms > 0:
        busy = per_pass / 1e6 / stats.profiled_ms
        parts.append(f"{busy:.1f} GB/s achieved in a pass of {stats.profiled_ms:.1f} ms")
        parts.append(f"{stats.stall_ms:.1f} ms of it waiting for pages")
        if stats.largest_stall_ms > 0:
            where = stats.largest_stall_module or "the root"
            parts.append(f"longest {stats.largest_stall_ms:.1f} ms before {where}")
    if isinstance(stats, PagerStats) and stats.encoded_bytes:
        parts.append(
            f"{format_bytes(stats.encoded_bytes)} of blocks encoded, {stats.code_ratio:.2f} to 1"
        )
    if stats.mismatches:
        parts.append(f"{stats.mismatches} uses out of order")
    return ", ".join(parts)


def memory_summary(attachment: BaseAttachment[Any]) -> str:
    """A few lines on where the memory is."""
    stats = attachment.pager.stats()
    rows = [
        ("weights", attachment.weight_bytes),
        ("budget", attachment.budget),
        ("  of it for blocks", stats["budget"]),
        ("blocks on the device", stats["device_bytes"]),
        ("  peak", stats["peak_device_bytes"]),
        ("  always resident", stats["pinned_bytes"]),
        ("page-locked on the host", stats["host_bytes"]),
    ]
    if stats.get("encoded_bytes"):
        rows.append(("  saved by encoding", stats["encoded_bytes"] - stats["code_bytes"]))
    lines = [f"{name:<26}{format_bytes(value):>12}" for name, value in rows]
    lines.append(
        f"{'pages':<26}{stats['pages']:>12}  ({stats['kept_pages']} stay, "
        f"{stats['streamed_pages']} stream through {stats['stream_slots']} slots)"
    )
    return "\n".join(lines)
