# SPDX-License-Identifier: Apache-2.0
"""Files: the one way in which results, pages and checkpoints are written, and others' are read.

`write` puts a file or a folder in its place whole or not at all; `read` takes no more of a file
than its reader can use. Standard library only.
"""

from .read import beginning, read_bytes, read_json, read_text
from .write import check_place, discard, publish, remedy_of, write_whole

__all__ = [
    "beginning",
    "check_place",
    "discard",
    "publish",
    "read_bytes",
    "read_json",
    "read_text",
    "remedy_of",
    "write_whole",
]
