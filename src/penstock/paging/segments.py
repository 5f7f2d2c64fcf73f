# SPDX-License-Identifier: Apache-2.0
"""Expandable segments of PyTorch's allocator, while models are attached.

By default PyTorch's allocator asks the driver for a segment at a time, and what is cut out of one
for a small tensor keeps the rest from a large one. Within a budget that is room lost: a training
step of GPT-2 XL that had 2,740 MiB allocated at its peak reserved 3,100, and the third one ended in
"CUDA out of memory" with 456 MiB reserved and free. With expandable segments each reserves 2,748.

They are left alone where the user has set them, or another backend than PyTorch's own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import torch

_KEY = "expandable_segments"
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

_lock = threading.RLock()  # a collection may drop an attachment anywhere
_users = 0
_before: str | None = None  # the settings to go back to; None where they were left alone
_left: tuple[str, str] = "", ""  # the settings after the last `restore`, and what they stand for


def expand() -> None:
    """From now on new segments are expandable; to be ended by as many `restore`."""
    global _users, _before
    with _lock:
        _users += 1
        if _users == 1:
            text = _settings()
            if text == _left[0]:
                text = _left[1]
            # Another allocator than PyTorch's own, or the user's choice, is left as it is.
            chosen = _KEY in text or torch.cuda.get_allocator_backend() != "native"
            _before = text if not chosen and _set(f"{text},{_KEY}:True".lstrip(",")) else None


def restore() -> None:
    """New segments are what they were before; those that there are stay."""
    global _users, _before, _left
    with _lock:
        _users -= 1
        if _users == 0 and _before is not None:
            _left = f"{_before},{_KEY}:False".lstrip(","), _before
            _set(_left[0])
            _before = None


def _settings() -> str:
    """All that has been set: to set one is to forget the others."""
    get: Callable[[], str] = getattr(torch._C, "_accelerator_getAllocatorSettings", str)
    return get() or next(filter(None, map(os.environ.get, _VARIABLES)), "")


def _set(text: str) -> bool:
    """Whether this torch took the settings."""
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (AttributeError, RuntimeError, ValueError):
        return False
    return True
