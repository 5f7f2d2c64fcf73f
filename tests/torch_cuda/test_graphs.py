# SPDX-License-Identifier: Apache-2.0
"""Private pools: what is allocated while a graph is captured, and where it goes afterwards."""

from __future__ import annotations

import pytest
import torch

MIB = 1 << 20


def pools():
    return {tuple(each["segment_pool_id"]) for each in torch.cuda.memory_snapshot()}


def capture(graph, **options):
    with torch.cuda.graph(graph, **options):
        inside = torch.empty(12 * MIB, dtype=torch.uint8, device="cuda")
        return inside[:10].clone()


def test_a_capture_has_memory_of_its_own():
    outside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    del outside  # free memory that the capture must not take
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    output = capture(graph)
    own = tuple(graph.pool())
    assert own in pools()
    segments = [each for each in torch.cuda.memory_snapshot() if each["segment_pool_id"] == own]
    assert any(
        each["address"] <= output.data_ptr() < each["address"] + each["total_size"]
        for each in segments
    )
    inside = torch.cuda.memory_snapshot(own)
    assert sum(each["total_size"] for each in inside) < torch.cuda.memory_reserved()
    later = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    assert not any(
        each["address"] <= later.data_ptr() < each["address"] + each["total_size"]
        for each in segments
    )
    graph.replay()
    graph.reset()
    del output, later, graph, kept
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert own not in pools()


def test_a_graph_keeps_what_was_freed_in_its_capture():
    # A replay writes there again, so it must neither go back nor to others.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        freed = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        place = freed.data_ptr()
        del freed
    own = tuple(graph.pool())
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert any(
        each["address"] <= place < each["address"] + each["total_size"]
        for each in torch.cuda.memory_snapshot(own)
    )
    other = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    graph.replay()
    graph.reset()
    torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    del other, graph


def test_graphs_may_share_a_pool():
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    a = capture(first)
    b = capture(second, pool=first.pool())
    assert len(pools() - {(0, 0)}) == 1
    assert a.data_ptr() != b.data_ptr()
    first.reset()
    assert len(pools() - {(0, 0)}) == 1
    second.reset()
    del a, b, first, second


def test_a_callable_can_be_graphed():
    weight = torch.empty(64, 64, device="cuda", requires_grad=True)
    sample = torch.empty(64, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(lambda x: (x * weight).relu(), (sample,))
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        graphed(sample).sum().backward()
    assert sample.grad.shape == sample.shape
    assert torch.cuda.memory_reserved() <= before + 4 * MIB


def test_other_threads_stay_outside_a_capture():
    import threading

    found = []

    def allocate():
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        inside = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join(30)
    own = tuple(graph.pool())
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["address"] == found[0].data_ptr():
                assert segment["segment_pool_id"] == (0, 0)
            if block["address"] == inside.data_ptr():
                assert segment["segment_pool_id"] == own
    graph.reset()
    found.clear()
    del inside, graph
