# SPDX-License-Identifier: Apache-2.0
"""Training beyond the budget: weights, optimizer state and held gradients, paged by one pager."""

from __future__ import annotations

from .attach import TrainingAttachment, attach_training

__all__ = ["TrainingAttachment", "attach_training"]
