# SPDX-License-Identifier: Apache-2.0
"""Ending with the process that started this one, however that ends.

It holds the other end of this one's standard input and never writes: when that closes, it is gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


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
