# SPDX-License-Identifier: Apache-2.0
"""The bound of a step, max(T, X / B): T its compute, X the bytes that must cross, B the link.

With S bytes of room for M bytes that a step touches, X is at least M - S (Belady). Of experts that
a router chooses evenly, a step reads as many from the device as their share there.
"""

from __future__ import annotations

# A median of samples is no more exact than this.
NOISE = 0.005


def copy_ms(nbytes: int, gb_per_s: float) -> float:
    """Milliseconds of so many bytes over the link; 0 where its speed is not known."""
    return max(0, nbytes) / gb_per_s / 1e6 if gb_per_s > 0 else 0.0


def must_cross(dense: int, room: int, *, experts: int = 0, chosen: int = 0) -> int:
    """X, the bytes that cross the link in a step whoever pages.

    Args:
        dense: Bytes that every step reads.
        room: S, bytes of the device for them; what they leave has experts in it.
        experts: Bytes of all experts.
        chosen: Of those that a step reads, drawn evenly.
    """
    missing = 1 - min(1.0, max(0, room - dense) / experts) if experts > 0 else 0.0
    return max(0, dense - room) + int(chosen * missing)


def shortest_ms(compute_ms: float, *copies: tuple[int, float]) -> float:
    """Milliseconds that no pager can beat.

    Args:
        compute_ms: T, of the same step with everything resident.
        copies: X and B, bytes and GB/s, of each direction: they share nothing.
    """
    return max([compute_ms, *(copy_ms(*copy) for copy in copies)])


def told(ratio: float, ideal: str) -> str:
    """A step over its ideal, in words; below 1 the ideal is wrong, and not the step fast."""
    words = f"{ratio:.3f} x the ideal of {ideal} ms"
    if ratio < 1 - NOISE:
        words += ", which is wrong: what it was taken from met a slow spell"
    return words
