# SPDX-License-Identifier: Apache-2.0
"""What the allocator says of itself, in torch's form: statistics, segments, traces, frames."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from penstock.allocator import snapshot as views
from penstock.allocator import trace as trace_of
from penstock.allocator.frames import MOST_FRAMES, FrameTable
from penstock.allocator.stats import as_torch
from penstock.native.api import new

RUN = 0x7F00_0000_0000
STITCHED = 0x7E00_0000_0000
CHUNK = 2 << 20


def piece(offset, size, block=0, block_offset=0, **more):
    more.setdefault("state", 1 if block else 0)
    more |= {"segment": RUN, "segment_bytes": 4 * CHUNK, "address": RUN + offset, "bytes": size}
    return new("piece_info", block=block, block_offset=block_offset, **more)


def stitched_state(events=()):
    """Two blocks where they lie, and one stitched from the two gaps around the second."""
    pieces = [
        piece(0, CHUNK, RUN, requested_bytes=CHUNK - 7),
        piece(CHUNK, CHUNK, STITCHED, 0, requested_bytes=2 * CHUNK - 9, stitched=1),
        piece(2 * CHUNK, CHUNK // 2, RUN + 2 * CHUNK, requested_bytes=100, state=2),
        piece(5 * CHUNK // 2, CHUNK // 2),
        piece(3 * CHUNK, CHUNK, STITCHED, CHUNK, stitched=1),
    ]
    return views.State(3, pieces, list(events))


def event(kind, address, size, context=0, time_ns=5000):
    return new(
        "history_event",
        time_ns=time_ns,
        address=address,
        bytes=size,
        requested_bytes=size - 1,
        stream=7,
        context=context,
        event=kind,
    )


def test_segments_add_up_to_what_is_reserved():
    found = views.segments(stitched_state(), FrameTable())
    assert sum(each["total_size"] for each in found) == 4 * CHUNK
    by_address = {each["address"]: each for each in found}
    assert sorted(by_address) == [STITCHED, RUN, RUN + 2 * CHUNK]
    whole = by_address[STITCHED]
    assert [(b["address"], b["size"], b["requested_size"]) for b in whole["blocks"]] == [
        (STITCHED, 2 * CHUNK, 2 * CHUNK - 9)
    ]
    assert whole["allocated_size"] == whole["active_size"] == 2 * CHUNK
    tail = by_address[RUN + 2 * CHUNK]
    assert [block["state"] for block in tail["blocks"]] == ["active_awaiting_free", "inactive"]
    assert (tail["allocated_size"], tail["active_size"]) == (0, CHUNK // 2)
    assert {each["device"] for each in found} == {3}


def test_segments_of_one_pool():
    pieces = [piece(0, CHUNK, RUN, pool_high=1), piece(CHUNK, CHUNK)]
    found = views.segments(views.State(0, pieces, []), FrameTable(), (1, 0))
    assert [(each["address"], each["segment_pool_id"]) for each in found] == [(RUN, (1, 0))]


def test_a_snapshot_keeps_runs_whole_beside_stitched_blocks():
    segments, trace = views.snapshot(stitched_state(), FrameTable())
    by_address = {each["address"]: each for each in segments}
    assert sorted(by_address) == [STITCHED, RUN]
    assert by_address[RUN]["total_size"] == 4 * CHUNK
    assert [b["state"] for b in by_address[RUN]["blocks"]] == [
        "active_allocated",
        "inactive",
        "active_awaiting_free",
        "inactive",
        "inactive",
    ]
    active = [b for s in segments for b in s["blocks"] if b["state"] == "active_allocated"]
    assert sorted(b["address"] for b in active) == [STITCHED, RUN]
    assert trace == []


def block_events(address, size):
    return [
        event(trace_of.ALLOC, address, size),
        event(trace_of.FREE_REQUESTED, address, size),
        event(trace_of.FREE_COMPLETED, address, size),
    ]


def extra_segments(events):
    segments, trace = views.snapshot(stitched_state(events), FrameTable())
    known = (RUN, STITCHED)
    extra = {s["address"]: s["total_size"] for s in segments if s["address"] not in known}
    return extra, [entry["action"] for entry in trace]


def test_a_range_that_is_kept_unused_is_in_the_snapshot_if_events_speak_of_it():
    idle, gone, unmapped = STITCHED + 64 * CHUNK, STITCHED + 128 * CHUNK, RUN + 8 * CHUNK
    extra, actions = extra_segments(
        [
            event(trace_of.MAP, unmapped, CHUNK),
            *block_events(unmapped, CHUNK // 2),
            event(trace_of.UNMAP, unmapped, CHUNK),
            event(trace_of.STITCH, idle, 3 * CHUNK),
            *block_events(idle, 2 * CHUNK),
            event(trace_of.STITCH, gone, CHUNK),
            *block_events(gone, CHUNK),
            event(trace_of.UNSTITCH, gone, CHUNK),
            event(trace_of.MAP, RUN + 3 * CHUNK, CHUNK),
        ]
    )
    assert extra == {idle: 3 * CHUNK}
    assert actions[:6] == [
        "segment_map",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_unmap",
        "segment_alloc",
    ]
    assert actions[-2:] == ["segment_free", "segment_map"]


def test_segments_stand_still_where_their_events_do_not_come_out_even():
    elsewhere = RUN + 16 * CHUNK
    extra, actions = extra_segments(
        [
            event(trace_of.MAP, elsewhere, 2 * CHUNK),
            *block_events(elsewhere, CHUNK),
            *block_events(elsewhere + CHUNK // 2, CHUNK),
            event(trace_of.UNMAP, RUN, 2 * CHUNK),  # what was given back, but not from there
        ]
    )
    assert extra == {elsewhere: 3 * CHUNK // 2}
    assert set(actions) == {"alloc", "free_requested", "free_completed"}


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.sampled_from("+-?")), max_size=30)
)
def test_spans_are_the_set_of_their_bytes(steps):
    spans, expected = trace_of._Spans([]), set()
    for begin, size, action in steps:
        bytes_ = set(range(begin, begin + size))
        assert spans.holds(begin, begin + size) == (bytes_ <= expected)
        assert spans.touches(begin, begin + size) == bool(bytes_ & expected)
        if action == "+":
            spans.cover(begin, begin + size)
            expected |= bytes_
        elif action == "-":
            assert spans.cut(begin, begin + size) == (bytes_ <= expected)
            expected -= bytes_ if bytes_ <= expected else set()
        ranges = spans.ranges()
        assert sorted(ranges) == ranges
        assert [b for begin, size in ranges for b in range(begin, begin + size)] == sorted(expected)


def test_an_out_of_memory_event_tells_what_was_free():
    _, trace = views.snapshot(
        views.State(0, [], [event(trace_of.OOM, 12345, 4 * CHUNK)]), FrameTable()
    )
    assert (trace[0]["action"], trace[0]["device_free"], trace[0]["size"]) == (
        "oom",
        12345,
        4 * CHUNK,
    )
    assert "addr" not in trace[0]


def remember(table):
    return table.take()


def test_frames_are_those_of_the_caller_innermost_first():
    table = FrameTable(skip=1)
    number = remember(table)
    frames = table.frames(number)
    assert [frame["name"] for frame in frames[:2]] == [
        "remember",
        "test_frames_are_those_of_the_caller_innermost_first",
    ]
    assert frames[0]["filename"] == __file__
    assert frames[0]["line"] == remember.__code__.co_firstlineno + 1


def test_the_same_stack_has_one_number_and_another_line_another():
    table = FrameTable(skip=1)
    numbers = [remember(table) for _ in range(3)]
    other = remember(table)
    assert len(set(numbers)) == 1
    assert other not in numbers
    assert table.frames(0) == []


def test_deep_stacks_are_cut():
    table = FrameTable(skip=1)

    def deeper(levels):
        return deeper(levels - 1) if levels else table.take()

    assert len(table.frames(deeper(3 * MOST_FRAMES))) == MOST_FRAMES


def test_a_thread_without_python_frames_has_no_stack():
    table = FrameTable(skip=1000)
    assert table.take() == 0


def test_many_threads_number_stacks_alike():
    table = FrameTable(skip=1)
    found = []

    def work():
        found.extend(remember(table) for _ in range(2000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {frame["name"] for number in set(found) for frame in table.frames(number)[:1]} == {
        "remember"
    }


def test_events_lead_to_the_frames_of_live_blocks():
    table = FrameTable(skip=1)
    number = remember(table)
    state = stitched_state([event(trace_of.ALLOC, STITCHED, 2 * CHUNK, number)])
    for segments in (views.segments(state, table), views.snapshot(state, table)[0]):
        block = next(s for s in segments if s["address"] == STITCHED)["blocks"][0]
        assert block["frames"][0]["name"] == "remember"
    assert views.origin_of(state, STITCHED, table)[0]["name"] == "remember"
    assert views.origin_of(state, RUN, table) is None


def test_a_completed_free_has_the_frames_of_its_request():
    table = FrameTable(skip=1)
    number = remember(table)
    events = [
        event(trace_of.FREE_REQUESTED, STITCHED, CHUNK, number),
        event(trace_of.ALLOC, RUN, CHUNK),
        event(trace_of.FREE_COMPLETED, STITCHED, CHUNK),
        event(trace_of.FREE_COMPLETED, RUN, CHUNK),
    ]
    _, trace = views.snapshot(stitched_state(events), table)
    assert [bool(entry["frames"]) for entry in trace] == [True, False, True, False]


def test_statistics_have_torch_s_names():
    stats = new("allocator_stats")
    stats.requested_bytes[0].current = 10
    stats.allocated_bytes[2].peak = 11
    stats.chunks.allocated = 12
    stats.chunks.freed = 13
    stats.retries = 14
    stats.stitches = 15
    told = as_torch(stats)
    assert told["requested_bytes"]["all"]["current"] == 10
    assert told["allocated_bytes"]["large_pool"]["peak"] == 11
    assert told["segment"]["all"]["allocated"] == told["num_device_alloc"] == 12
    assert told["num_device_free"] == 13
    assert told["num_alloc_retries"] == 14
    assert told["penstock"]["stitches"] == 15
    assert told["max_split_size"] == -1
