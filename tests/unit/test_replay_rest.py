# SPDX-License-Identifier: Apache-2.0
"""Recorded runs: shapes that come back need nothing new; what is tight is packed more tightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.native.replay import replay
from penstock.trace import read_traces
from penstock.trace.events import make_trace

DATA = Path(__file__).parents[1] / "data"
TRACE = DATA / "gpt2xl_generate_shapes.npz"


def test_shapes_that_come_back_find_their_ranges():
    (trace,) = read_traces(TRACE)
    figures = replay(trace, allocator="stitch").figures
    # Each shape came once in the first half. 1,521 stitches, and 5.9 % of the second half, while
    # what was chosen still depended on what had been freed last.
    assert figures["stitches"] < 200
    assert figures["modelled_driver_ms_second_half"] < 0.001 * figures["trace_ms"]
    assert figures["peak_requested_bytes"] > 0.99 * figures["peak_reserved_bytes"]


def test_near_the_budget_small_chunks_pack_tighter():
    (trace,) = read_traces(DATA / "traces" / "opt1.3b_full.npz")
    # It asks for 14,988 MiB at most.  With chunks of up to 8 MiB to the end it took 15,022; under
    # expandable_segments' model it takes 15,100.
    limit = 15_004 << 20
    assert replay(trace, allocator="stitch", capacity=limit).failed_event is None
    assert replay(trace, allocator="expandable", capacity=limit).failed_event is not None


def looped(trace, begin, length, times, late):
    """The events of one step of a loop again and again, of which no two are quite the same.

    What another stream still used when it was freed (gathered weights, under ZeRO-3) is free up to
    so many events later, at random.
    """
    rng = np.random.default_rng(1)
    born, lives = {}, []
    for at, (op, block) in enumerate(zip(trace.op.tolist(), trace.id.tolist(), strict=True)):
        if op == 0:
            born[block] = len(lives)
            lives.append([at, None, None])
        else:
            lives[born[block]][op] = at
    events = []
    for at, asked, freed in lives:
        again = times if begin <= at < begin + length and freed is not None else 1
        if at >= begin + length:
            break
        for turn in range(again):
            block = (len(events), trace.size[at], trace.stream[at])
            events.append((at + turn * length, 0, *block))
            if freed is not None:
                delay = rng.uniform(0, late) if freed - asked > 1 and begin <= at else 0
                events.append((asked + turn * length, 1, *block))
                events.append((freed + turn * length + delay + 0.5, 2, *block))
    events = sorted(event for event in events if event[0] < begin + length * times)
    fields = ("time_us", "op", "id", "size", "stream")
    columns = zip(*events, strict=True)
    return make_trace(
        trace.name,
        {name: np.int64(column) for name, column in zip(fields, columns, strict=True)},
    )


# The last step but one of the recorded run begins with its forward pass.
STEP = {"begin": 132_231, "length": 16_299}


@pytest.mark.slow
@pytest.mark.parametrize("late", [60, 6_000])
def test_a_loop_whose_small_stream_is_never_the_same_comes_to_rest(late):
    (trace,) = read_traces(DATA / "traces" / "zero3_opt1.3b_lora_ckpt_bs160.npz")
    loop = looped(trace, **STEP, times=16, late=late)
    figures = replay(loop, allocator="stitch").figures
    # While streams took what others had freed, the range of 16 GB behind the logits was made anew
    # in each step: 195 and 232 ms in the second half, with chunks as large as they are now.
    assert figures["modelled_driver_ms_second_half"] < 40
    assert figures["peak_requested_bytes"] > 0.985 * figures["peak_reserved_bytes"]


@pytest.mark.slow
def test_memory_kept_for_a_small_stream_does_not_grow_from_step_to_step():
    (trace,) = read_traces(DATA / "traces" / "zero3_opt1.3b_lora_ckpt_bs160.npz")
    loop = looped(trace, **STEP, times=16, late=10_000)
    # While the small stream was given new memory after each time that the large one had taken its
    # own, it was 75 GiB after 16 steps, and 88 after 30.
    figures = replay(loop, allocator="stitch").figures
    assert figures["peak_requested_bytes"] > 0.985 * figures["peak_reserved_bytes"]
