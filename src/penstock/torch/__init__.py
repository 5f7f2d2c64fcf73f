# SPDX-License-Identifier: Apache-2.0
"""Penstock for PyTorch: attach a model, ask what happened."""

from __future__ import annotations

from typing import Any

from penstock.errors import UsageError

from . import summary as _summary
from .attached import Attached, attachments
from .attachment import Attachment, attach
from .training import TrainingAttachment, attach_training

__all__ = [
    "Attachment",
    "TrainingAttachment",
    "attach",
    "attach_training",
    "attachments",
    "memory_summary",
    "stats",
]


def _the(attachment: Attached[Any] | None) -> Attached[Any]:
    if attachment is not None:
        return attachment
    live = attachments()
    if len(live) != 1:
        raise UsageError(f"{len(live)} models are attached", remedy="name the attachment you mean")
    return live[0]


def stats(attachment: Attached[Any] | None = None) -> dict[str, Any]:
    """Counters of the one attached model, or of the attachment given."""
    return _the(attachment).stats()


def memory_summary(attachment: Attached[Any] | None = None) -> str:
    """Where the memory of the one attached model is, or of the attachment given."""
    return _summary.memory_summary(_the(attachment))
