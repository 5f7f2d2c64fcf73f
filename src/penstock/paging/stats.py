# SPDX-License-Identifier: Apache-2.0
"""What the counters of an attachment amount to, in numbers and in one line."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.units import format_bytes

from .contracts import Hooks, Memory


class BaseAttachment(Protocol):
    """What a summary reads of an attachment."""

    weight_bytes: int
    budget: int
    passes: int
    hooks: Hooks

    @property
    def pager(self) -> Memory:
        """The pager."""

    def link(self) -> tuple[float, float]:
        """Link speed in and out, GB/s."""


def summarize(attachment: BaseAttachment) -> dict[str, Any]:
    """The pager's counters, and what they mean.

    Returns:
        Everything of Pager.stats(), and: weight_bytes, gpu_memory_bytes, passes, hit_ratio (share
        of the page uses of the last pass that needed no copy), compute_ms (the profiled pass less
        its stalls), link_gb_per_s and link_out_gb_per_s (page-locked copies, measured), ideal_ms =
        max(compute, (M - S) / link) for one pass with M the bytes of all weights and S the room
        that blocks have, floor_ms the same with M only what the pass must have in device memory
        (tables left on the host do not count), largest_stall_module.
    """
    stats = attachment.pager.stats()
    link_in, link_out = attachment.link()
    room = stats["budget"]
    needed = stats["paged_bytes"] + stats["pinned_bytes"]
    compute = max(0.0, stats["profiled_ms"] - stats["stall_ms"])
    if not attachment.hooks.armed:  # everything stays, and passes are not even followed
        stats.update(iteration_bytes_in=0, iteration_bytes_out=0, iteration_page_loads=0)
    uses = stats["iteration_page_uses"]
    stats.update(
        weight_bytes=attachment.weight_bytes,
        gpu_memory_bytes=attachment.budget,
        passes=attachment.passes,
        hit_ratio=1.0 - stats["iteration_page_loads"] / uses if uses else 1.0,
        compute_ms=compute,
        link_gb_per_s=link_in,
        link_out_gb_per_s=link_out,
        ideal_ms=max(compute, _copy_ms(attachment.weight_bytes - room, link_in)),
        floor_ms=max(compute, _copy_ms(needed - room, link_in)),
        largest_stall_module=attachment.hooks.name_of(stats["largest_stall_use"]),
    )
    return stats


def _copy_ms(size: int, gb_per_s: float) -> float:
    return max(0, size) / gb_per_s / 1e6 if gb_per_s else 0.0


def explain(stats: dict[str, Any]) -> str:
    """One line on why the last passes took as long as they did."""
    per_pass = stats["iteration_bytes_in"]
    if stats["kept_pages"] == stats["pages"] and per_pass == 0:
        return (
            f"everything stays on the device: {format_bytes(stats['paged_bytes'])} of blocks in "
            f"{format_bytes(stats['budget'])}, nothing moved in the last pass"
        )
    parts = [
        f"{format_bytes(per_pass)} in and {format_bytes(stats['iteration_bytes_out'])} out a pass",
        f"hit ratio {stats['hit_ratio']:.3f}",
        f"link {stats['link_gb_per_s']:.1f} GB/s",
    ]
    if stats["profiled_ms"] > 0:
        busy = per_pass / 1e6 / stats["profiled_ms"]
        parts.append(f"{busy:.1f} GB/s achieved in a pass of {stats['profiled_ms']:.1f} ms")
        parts.append(f"{stats['stall_ms']:.1f} ms of it waiting for pages")
        if stats["largest_stall_ms"] > 0:
            where = stats["largest_stall_module"] or "the root"
            parts.append(f"longest {stats['largest_stall_ms']:.1f} ms before {where}")
    if stats["mismatches"]:
        parts.append(f"{stats['mismatches']} uses out of order")
    return ", ".join(parts)


def memory_summary(attachment: BaseAttachment) -> str:
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
    lines = [f"{name:<26}{format_bytes(value):>12}" for name, value in rows]
    lines.append(
        f"{'pages':<26}{stats['pages']:>12}  ({stats['kept_pages']} stay, "
        f"{stats['streamed_pages']} stream through {stats['stream_slots']} slots)"
    )
    return "\n".join(lines)
