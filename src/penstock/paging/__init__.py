# SPDX-License-Identifier: Apache-2.0
"""Models larger than the device's memory: attach one, ask what happened."""

from __future__ import annotations

from .attach import Attachment, attach
from .attached import attachments
from .current import memory_summary, stats
from .pretrained import from_pretrained
from .training import TrainingAttachment, attach_training

__all__ = [
    "Attachment",
    "TrainingAttachment",
    "attach",
    "attach_training",
    "attachments",
    "from_pretrained",
    "memory_summary",
    "stats",
]
