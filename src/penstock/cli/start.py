# SPDX-License-Identifier: Apache-2.0
"""Where ``penstock`` begins.

Until its modules are there, which takes a tenth of a second, there is nothing to end in order:
Ctrl-C ends the process as it does any other, not with Python's traceback.
"""

from __future__ import annotations

import signal


def run() -> None:
    """The command line, and the end of the process."""
    # Not where it is ignored, as a shell wants of what runs in the background.
    taken = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if taken:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import run as run_verb

    if taken:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_verb()
