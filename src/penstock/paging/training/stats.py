# SPDX-License-Identifier: Apache-2.0
"""What a training step must move at the least, and what the counters amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.bound import shortest_ms

from ..stats import PagerStats


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStats(PagerStats):
    """Counters and sizes of what attach_training() made; a pass is a step.

    ideal_ms is that of the least bytes in and out, which take their ways at the same time, and of
    the activations that came and went.

    Attributes:
        trained_bytes: Bytes of the weights that are updated.
        state_bytes: Bytes of optimizer state that is paged; what fits stays torch's own.
        least_bytes_in: Bytes that a step cannot do without copying in, for the room of the blocks.
        least_bytes_out: The same for copies out.
        steps: Optimizer steps.
        updates_in_backward: Whether parameters are updated in backward by now.
        activation_bytes: The most bytes of activations that there were at once, on the device and
            on the host; 0 in a step that is known to fit, in which nobody looks.
        activation_bytes_out: Bytes of activations that the step copied out.
        activation_bytes_in: Bytes of them that it copied in.
        activation_host_bytes: Bytes of host memory for them.
    """

    trained_bytes: int
    state_bytes: int
    least_bytes_in: int
    least_bytes_out: int
    steps: int
    updates_in_backward: bool
    activation_bytes: int
    activation_bytes_out: int
    activation_bytes_in: int
    activation_host_bytes: int


def summarize_training(
    figures: dict[str, Any], *, trained: int, state: int, moved: dict[str, Any], **more: Any
) -> TrainingStats:
    """What the figures of an attachment mean for a step.

    Args:
        figures: Those of any.
        trained: Bytes of the weights that are updated.
        state: Bytes of optimizer state.
        moved: Bytes of activations in the last step, by name.
        more: The fields that are the attachment's own.
    """
    least_in, least_out = least_traffic(
        weights=figures["weight_bytes"], trained=trained, state=state, room=figures["budget"]
    )
    return TrainingStats(
        **figures,
        **moved,
        **more,
        trained_bytes=trained,
        state_bytes=state,
        least_bytes_in=least_in,
        least_bytes_out=least_out,
        ideal_ms=shortest_ms(
            figures["compute_ms"],
            (least_in + moved["activation_bytes_in"], figures["link_gb_per_s"]),
            (least_out + moved["activation_bytes_out"], figures["link_out_gb_per_s"]),
        ),
    )
