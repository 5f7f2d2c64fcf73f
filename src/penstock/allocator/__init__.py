# SPDX-License-Identifier: Apache-2.0
"""Penstock's allocator for PyTorch: enable(), and what torch shows of it."""

from __future__ import annotations

from .enabling import enable, mem_pool

__all__ = ["enable", "mem_pool"]
