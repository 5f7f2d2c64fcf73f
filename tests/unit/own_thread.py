# SPDX-License-Identifier: Apache-2.0
"""Tests in whose backward a hook of a parameter, or PyTorch itself, raises.

On the CPU such an error leaves work in a queue of its thread, and with it a part of the graph and
of the model, until the thread ends. On a GPU PyTorch's own threads go through that queue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_a_thread(test: Callable[..., None]) -> Callable[..., None]:
    """Have a test run in a thread of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(test, *args, **kwargs).result()

    return run
