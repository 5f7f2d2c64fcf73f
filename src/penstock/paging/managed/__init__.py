# SPDX-License-Identifier: Apache-2.0
"""Unified memory as a back end: a model's parameters in managed memory, moved a layer at a time."""

from __future__ import annotations

from .attachment import ManagedAttachment, attach_managed

__all__ = ["ManagedAttachment", "attach_managed"]
