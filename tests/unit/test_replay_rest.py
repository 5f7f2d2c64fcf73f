# SPDX-License-Identifier: Apache-2.0
"""Batches of several shapes, in whatever order, need nothing new once each has been seen."""

from __future__ import annotations

from pathlib import Path

from penstock.native.replay import replay
from penstock.trace import read_traces

TRACE = Path(__file__).parents[1] / "data" / "gpt2xl_generate_shapes.npz"


def test_shapes_that_come_back_find_their_ranges():
    (trace,) = read_traces(TRACE)
    figures = replay(trace, allocator="stitch").figures
    # Each shape came once in the first half. 1,521 stitches, and 5.9 % of the second half, while
    # what was chosen still depended on what had been freed last.
    assert figures["stitches"] < 200
    assert figures["modelled_driver_ms_second_half"] < 0.001 * figures["trace_ms"]
    assert figures["peak_requested_bytes"] > 0.99 * figures["peak_reserved_bytes"]
