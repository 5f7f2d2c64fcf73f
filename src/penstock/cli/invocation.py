# SPDX-License-Identifier: Apache-2.0
"""What the entry point and the verbs agree on; kept apart so that ``--help`` imports little."""

from __future__ import annotations

from typing import Any

# Help texts are at most this wide, however wide the terminal is: they were laid out for it.
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


class Invocation:
    """What the entry point has to know about a verb that failed.

    Attributes:
        verbose: Whether a traceback is wanted.
    """

    def __init__(self) -> None:
        self.verbose = False
