# SPDX-License-Identifier: Apache-2.0
"""Results as verbs write them, for the tests of what reads them."""

from __future__ import annotations

from penstock.finetune.compare import Row, document
from penstock.results import with_head

MIB = 1 << 20


def finetuned(reserved=120 * MIB, loss=(3.0, 2.0, 1.0), **changes):
    """A result of `penstock finetune`."""
    curve = {"ms": [0, 9], "requested": [1, 90 * MIB], "reserved": [2, reserved]}
    values = {
        **{"model": "tiny", "strategy": "N", "allocator": "x", "loss": list(loss)},
        **{"step_ms": [9.0, 5.0, 4.0], "timed_from": 1, "median_step_ms": 4.5, "steps": 3},
        **{"peak_requested_bytes": 90 * MIB, "peak_active_bytes": 91 * MIB, "gpus": 1},
        **{"peak_reserved_bytes": reserved, "utilisation": (90 * MIB) / reserved},
        **{"tokens_per_second": 1000.0, "batch": 2, "seq_len": 16, "dtype": "mixed"},
        **{"device_name": "a GPU", "torch": "2", "version": "0", "memory_figures": "allocator"},
        **{"engine": "single", "memory_over_time": curve},
    }
    return {**with_head("finetune", values), **changes}


def compared(*, failed=False):
    """Rows of `penstock compare`."""
    rows = [
        Row("native", None, 0, None, 1.0, finetuned(120 * MIB, [3.0, 2.0, 1.0])),
        Row("stitch", None, 0, None, 1.0, finetuned(91 * MIB, [3.0, 2.0, 1.25])),
    ]
    if failed:
        rows.append(Row(None, "<b>", 4, "needs <more> & more", 1.0, None))
    return rows


def comparison(*, failed=False):
    """A result of `penstock compare`."""
    return document(["--model", "tiny"], compared(failed=failed))
