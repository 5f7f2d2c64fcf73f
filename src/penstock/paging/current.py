# SPDX-License-Identifier: Apache-2.0
"""What can be asked of the one model that is attached, without naming it."""

from __future__ import annotations

from typing import Any

from penstock.errors import UsageError

from . import stats as _stats
from .attached import attachments
from .attachment import BaseAttachment


def _the(attachment: BaseAttachment[Any] | None) -> BaseAttachment[Any]:
    if attachment is not None:
        return attachment
    live = attachments()
    if len(live) != 1:
        raise UsageError(f"{len(live)} models are attached", remedy="name the attachment you mean")
    return live[0]


def stats(attachment: BaseAttachment[Any] | None = None) -> _stats.BaseStats:
    """Counters of the one attached model, or of the attachment given."""
    return _the(attachment).stats()


def memory_summary(attachment: BaseAttachment[Any] | None = None) -> str:
    """Where the memory of the one attached model is, or of the attachment given."""
    return _stats.memory_summary(_the(attachment))
