# SPDX-License-Identifier: Apache-2.0
"""Processes that end with the one that started them, however that ends.

It holds the other end of their standard input and never writes: when that closes, it is gone.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What a process that is told to end may take to clean up.
END_S = 30.0


def end_with_parent(last: Callable[[], object] = lambda: None) -> None:
    """Leave when standard input closes, with exit code 1.

    Args:
        last: Called before.
    """

    def watch() -> None:
        while os.read(0, 1):  # a buffered read would hold a lock when the interpreter ends
            pass
        try:
            last()
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="penstock-parent", daemon=True).start()


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens within, the process is gone afterwards."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
