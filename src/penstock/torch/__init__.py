# SPDX-License-Identifier: Apache-2.0
"""Penstock for PyTorch: attach a model, ask what happened."""

from __future__ import annotations

from typing import Any

from penstock.errors import UsageError

from . import summary as _summary
from .attachment import Attachment, attach, attachments

__all__ = ["Attachment", "attach", "attachments", "memory_summary", "stats"]


def _the(attachment: Attachment | None) -> Attachment:
    if attachment is not None:
        return attachment
    live = attachments()
    if len(live) != 1:
        raise UsageError(f"{len(live)} models are attached", remedy="name the attachment you mean")
    return live[0]


def stats(attachment: Attachment | None = None) -> dict[str, Any]:
    """Counters of the one attached model, or of the attachment given."""
    return _summary.summarize(_the(attachment))


def memory_summary(attachment: Attachment | None = None) -> str:
    """Where the memory of the one attached model is, or of the attachment given."""
    return _summary.memory_summary(_the(attachment))
