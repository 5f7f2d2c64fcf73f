# SPDX-License-Identifier: Apache-2.0
"""Page data through an emulated GPU a quarter of its size, and look at every byte.

Run as a process: ``python -m penstock.cli.checks.selftest`` prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys

from penstock.errors import PenstockError
from penstock.units import MIB, format_bytes

BLOCKS = 16
BLOCK_BYTES = 2 * MIB
BUDGET = BLOCKS * BLOCK_BYTES // 4
ITERATIONS = 3


def run() -> tuple[bool, str]:
    """Do it; returns whether every byte was right, and what was seen."""
    from penstock import native

    contents = [random.Random(block).randbytes(BLOCK_BYTES) for block in range(BLOCKS)]
    with (
        native.Device(native.EMULATED, capacity=2 * BUDGET) as device,
        native.Pager(
            device,
            budget=BUDGET,
            chunk_bytes=BLOCK_BYTES,
            look_ahead_bytes=BLOCK_BYTES,
            max_copy_bytes=BLOCK_BYTES,
        ) as pager,
    ):
        ranges = [pager.create_range(BLOCK_BYTES) for _ in contents]
        for made, content in zip(ranges, contents, strict=True):
            ctypes.memmove(made.host, content, BLOCK_BYTES)
        uses = [pager.define_use([(made.address, BLOCK_BYTES, False)]) for made in ranges]
        for iteration in range(ITERATIONS):
            for block, use in enumerate(uses):
                pager.begin(use)
                seen = ctypes.string_at(ranges[block].address, BLOCK_BYTES)
                pager.end(use)
                if seen != contents[block]:
                    return False, f"block {block} is not what it was in iteration {iteration}"
            pager.iteration()
        moved = pager.stats()["bytes_in"]
    total = format_bytes(BLOCKS * BLOCK_BYTES)
    return (
        True,
        f"{total} through {format_bytes(BUDGET)}, {format_bytes(moved)} in, all bytes right",
    )


def main() -> int:
    """Print the result as JSON; exits 0 if it is good."""
    try:
        ok, observed = run()
    except PenstockError as error:
        ok, observed = False, str(error)
    print(json.dumps({"ok": ok, "observed": observed}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
