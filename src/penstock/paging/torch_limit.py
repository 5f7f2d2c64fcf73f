# SPDX-License-Identifier: Apache-2.0
"""The one limit of PyTorch's allocator on a device, which all attachments there share.

`torch.cuda.set_per_process_memory_fraction` is one figure a device. Each attachment leaves a part
of its budget to the allocator; the limit is their sum, less what the driver takes, and never more
than the user's own, which is back when the last attachment has gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from penstock.units import MIB

SMALLEST = 2 * MIB  # a segment of the allocator


@dataclass(slots=True)
class _Share:
    """One attachment's: what it holds now, and what it leaves of its budget."""

    held: Callable[[], int]
    spare: int = 0
    limited: bool = False


@dataclass(slots=True)
class _Device:
    shares: dict[object, _Share] = field(default_factory=dict)
    users: float = 1.0  # the user's own
    ours: float | None = None  # what was set last


_devices: dict[int, _Device] = {}
_lock = threading.RLock()  # a collection may drop an attachment anywhere


def enter(device: torch.device, owner: object, held: Callable[[], int]) -> None:
    """An attachment begins; `held` tells the bytes of device memory that its blocks have."""
    with _lock:
        _devices.setdefault(_index(device), _Device()).shares[owner] = _Share(held)


def others_held(device: torch.device, owner: object) -> int:
    """Bytes that the blocks of all other attachments on the device have."""
    return sum(share.held() for share in _others(device, owner))


def others_spare(device: torch.device, owner: object) -> int:
    """Bytes that all other attachments on the device leave of their budgets."""
    return sum(share.spare for share in _others(device, owner))


def limit(device: torch.device, owner: object, *, spare: int, driver: int, total: int) -> None:
    """Set the limit anew.

    Args:
        device: The device.
        owner: The attachment, which has entered.
        spare: Bytes that it leaves of its budget.
        driver: Bytes that neither blocks nor the allocator know of.
        total: Bytes that the device has.
    """
    with _lock:
        state = _devices[_index(device)]
        share = state.shares[owner]
        share.spare, share.limited = spare, True
        if state.ours is None:
            state.users = _fraction(device)
        allowed = sum(share.spare for share in state.shares.values()) - driver
        fraction = min(max(allowed, SMALLEST) / total, state.users)
        torch.cuda.set_per_process_memory_fraction(fraction, device)
        state.ours = _fraction(device, fraction)


def leave(device: torch.device, owner: object) -> None:
    """An attachment has gone; the last one leaves the user's own limit."""
    with _lock:
        state = _devices.get(_index(device))
        if state is None or state.shares.pop(owner, None) is None:
            return
        if any(share.limited for share in state.shares.values()):
            return  # whoever stays sets the limit after its next pass
        if state.ours is not None and _fraction(device, state.ours) == state.ours:
            torch.cuda.set_per_process_memory_fraction(state.users, device)
        state.ours = None


def _others(device: torch.device, owner: object) -> list[_Share]:
    with _lock:
        state = _devices.get(_index(device))
        return [s for key, s in state.shares.items() if key is not owner] if state else []


def _index(device: torch.device) -> int:
    return device.index or 0


def _fraction(device: torch.device, otherwise: float = 1.0) -> float:
    """The limit that is set; `otherwise` where this torch does not tell."""
    get: Callable[[torch.device], float] | None = getattr(
        torch.cuda, "get_per_process_memory_fraction", None
    )
    return float(get(device)) if get is not None else otherwise
