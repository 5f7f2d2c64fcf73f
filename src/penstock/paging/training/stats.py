# SPDX-License-Identifier: Apache-2.0
"""What a training step must move at the least, and what the counters amount to."""

from __future__ import annotations

from typing import Any


def least_traffic(*, weights: int, trained: int, state: int, room: int) -> tuple[int, int]:
    """Bytes in and out that a step cannot do without, when `room` bytes of blocks can stay.

    A step reads the weights in forward, reads them again in backward and updates the trained ones
    there, together with their state. So a byte of state that does not stay costs one in and one
    out, a byte of weights two in (and one out if it is trained): state goes first.

    Args:
        weights: Bytes of all paged weights.
        trained: Bytes of those that are updated.
        state: Bytes of optimizer state.
        room: Bytes of device memory for both.

    Returns:
        (bytes in, bytes out).
    """
    over = max(0, weights + state - room)
    if over <= state:
        return over, over
    beyond = over - state
    frozen = weights - trained
    return state + 2 * beyond, state + max(0, beyond - frozen)


def summarize_training(
    stats: dict[str, Any], *, weights: int, trained: int, state: int, link: tuple[float, float]
) -> dict[str, Any]:
    """The pager's counters of the last step, and what they mean.

    Returns:
        Everything of Pager.stats(), and: weight_bytes, trained_bytes, state_bytes, hit_ratio,
        compute_ms (the profiled step less its stalls), link_gb_per_s and link_out_gb_per_s,
        least_bytes_in and least_bytes_out for the room that blocks have, and ideal_ms =
        max(compute, least in / link in, least out / link out).
    """
    least_in, least_out = least_traffic(
        weights=weights, trained=trained, state=state, room=int(stats["budget"])
    )
    compute = max(0.0, stats["profiled_ms"] - stats["stall_ms"])
    copies = [
        size / speed / 1e6
        for size, speed in zip((least_in, least_out), link, strict=True)
        if speed > 0
    ]
    uses = stats["iteration_page_uses"]
    return {
        **stats,
        "weight_bytes": weights,
        "trained_bytes": trained,
        "state_bytes": state,
        "hit_ratio": 1.0 - stats["iteration_page_loads"] / uses if uses else 1.0,
        "compute_ms": compute,
        "link_gb_per_s": link[0],
        "link_out_gb_per_s": link[1],
        "least_bytes_in": least_in,
        "least_bytes_out": least_out,
        "ideal_ms": max([compute, *copies]),
    }
