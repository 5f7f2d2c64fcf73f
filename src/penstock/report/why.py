# SPDX-License-Identifier: Apache-2.0
"""Why a step takes as long as it does, in one line, and what to do about it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from penstock.bound import copy_ms
from penstock.units import GIB, format_bytes, format_number

from .result import Result

# Of a step; what is neither computing nor copying is not worth a word below it.
_SLACK = 0.15
# Of what is reserved.
_WELL_USED = 0.9


class Why(NamedTuple):
    """What holds a run up, and the remedy."""

    what: str
    remedy: str


def why(result: Result) -> Why | None:
    """None where nothing is known, as on the emulated GPU, whose times say nothing."""
    if result.failure is not None:
        return None
    step, compute, link = result.median_step_ms, result.compute_ms, result.link_gb_per_s
    if result.emulated or step is None or compute is None or not link:
        return _memory(result)
    moved = int(max(result.bytes_in or 0, result.bytes_out or 0))
    copying = copy_ms(moved, link)
    busy = (
        f"{format_number(step)} ms per step: {format_number(compute)} ms of computing, beside it "
        f"{format_number(copying)} ms of copying {format_bytes(moved)}"
    )
    slack = step - max(compute, copying)
    if slack > _SLACK * step:
        return Why(
            f"{busy}; the other {format_number(slack)} ms go to the host, or to late pages",
            "a larger --gpu-memory, or more work per step, as with a larger batch",
        )
    if copying > compute:
        room = format_bytes((result.gpu_memory_bytes or 0) + moved)
        return Why(
            f"{busy}; the link sets the pace",
            f"--gpu-memory {room.replace(' ', '')}, where nothing moves; each GiB more saves "
            f"{format_number(copy_ms(GIB, link))} ms",
        )
    return Why(
        f"{busy}; the GPU sets the pace",
        "a shorter data type, or fused layers: more memory makes no difference",
    )


def _memory(result: Result) -> Why | None:
    share, reserved = result.utilisation, result.peak_reserved_bytes
    if share is None or reserved is None or share >= _WELL_USED:
        return None
    return Why(
        f"{format_bytes(int(reserved * (1 - share)))} of {format_bytes(reserved)} reserved are in "
        "pieces that nothing fits",
        "--allocator stitch, or penstock.enable()",
    )
