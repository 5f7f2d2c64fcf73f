# SPDX-License-Identifier: Apache-2.0
"""The bound of a step, max(T, X / B): T its compute, X the bytes that must cross, B the link.

With S bytes of room for M bytes that a step touches, X is at least M - S (Belady). Of experts that
a router chooses evenly, a step reads as many from the device as their share there. Where several
models run in turn, what one leaves on the device has to outlast the passes of the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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


def must_cross_in_turn(passes: Sequence[tuple[Hashable, int, int]]) -> list[int]:
    """The fewest bytes that cross the link in each pass of a round that is repeated.

    A byte that is read again need not cross if it stayed. Such stays are intervals from one pass of
    a model to its next one; those that end first are the best, by as much as there is room for
    between two passes and throughout those of other models (Belady 1966; Carlisle and Lloyd 1995
    for intervals that share a capacity).

    Args:
        passes: In their order: whose weights, how many bytes of them, and the room for them then.
    """
    count = len(passes)
    rounds = 3  # the last one finds what a round leaves
    between = [max(passes[n % count][2], passes[(n + 1) % count][2]) for n in range(rounds * count)]
    during = [passes[n % count][2] for n in range(rounds * count)]
    before: dict[Hashable, int] = {}
    crossing = []
    for number in range(rounds * count):
        model, nbytes, _ = passes[number % count]
        stayed = 0
        if model in before:
            since = before[model]
            gaps, others = range(since, number), range(since + 1, number)
            left = [*(between[n] for n in gaps), *(during[n] for n in others), nbytes]
            stayed = max(0, min(left))
            for gap in gaps:
                between[gap] -= stayed
            for other in others:
                during[other] -= stayed
        before[model] = number
        crossing.append(nbytes - stayed)
    return crossing[-count:]


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
