# SPDX-License-Identifier: Apache-2.0
"""Tensors' bytes: nothing is lost or shared, on one stream, on several, in several threads."""

from __future__ import annotations

import ctypes
import itertools
import random
import threading

import torch

from penstock.native.library import library

MIB = 1 << 20
CHUNK = 8 * MIB  # the largest


def on_gpu(host):
    return host.to("cuda")


def test_bytes_survive_any_order_of_allocations(pattern):
    chosen = random.Random(5)
    live, sizes = {}, {}
    for number in range(400):
        size = chosen.choice([1, 100, 513, 4096, 70_000, MIB + 1, 3 * MIB])
        if sum(map(len, live.values())) + size > 128 * MIB or (live and chosen.random() < 0.4):
            key = chosen.choice(sorted(live))
            assert torch.equal(live.pop(key).cpu(), pattern(key, sizes[key])), key
        live[number] = on_gpu(pattern(number, size))
        sizes[number] = size
    addresses = sorted((t.data_ptr(), t.data_ptr() + len(t)) for t in live.values())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(addresses))
    for key, tensor in live.items():
        assert torch.equal(tensor.cpu(), pattern(key, sizes[key])), key


def test_scattered_free_memory_is_joined(pattern):
    # 14 of 16 MiB fill most of the budget of 256; every other one goes, and the holes are 16 MiB.
    blocks = [on_gpu(pattern(i, 16 * MIB)) for i in range(14)]
    del blocks[1::2]
    reserved = torch.cuda.memory_reserved()
    joined = on_gpu(pattern(99, 100 * MIB))
    assert torch.cuda.memory_reserved() <= reserved + CHUNK
    assert torch.cuda.memory_stats()["penstock.stitches"] >= 1
    assert torch.equal(joined.cpu(), pattern(99, 100 * MIB))
    for i, block in zip(range(0, 14, 2), blocks, strict=True):
        assert torch.equal(block.cpu(), pattern(i, 16 * MIB))


def test_a_steady_loop_makes_no_driver_call():
    def step():
        kept = [torch.empty(5 * MIB + i * 70_000, device="cuda") for i in range(3)]
        return [torch.empty(9 * MIB, device="cuda") for _ in kept]

    for _ in range(4):
        step()
    before = torch.cuda.memory_stats()["penstock.driver_calls"]
    for _ in range(10):
        step()
    assert torch.cuda.memory_stats()["penstock.driver_calls"] == before


def test_a_recorded_stream_keeps_a_block(pattern):
    size = 8 * MIB
    side = torch.cuda.Stream()
    other = pattern(2, size).pin_memory()
    for number in range(20):
        block = on_gpu(pattern(number, size))
        with torch.cuda.stream(side):
            for _ in range(3):  # work that is still under way when the block is freed
                copy = block.clone()
            block.record_stream(side)
        del block
        overwriting = torch.empty(size, dtype=torch.uint8, device="cuda")
        overwriting.copy_(other, non_blocking=True)
        side.synchronize()
        assert torch.equal(copy.cpu(), pattern(number, size)), number


def test_memory_that_another_stream_freed_is_handed_over_in_order(pattern):
    size = 24 * MIB
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for number in range(12):
        stream = streams[number % 3]
        with torch.cuda.stream(stream):
            block = torch.empty(size, dtype=torch.uint8, device="cuda")
            block.copy_(pattern(number, size))
            results.append((number, block.clone().cpu()))
            del block
    for number, result in results:
        assert torch.equal(result, pattern(number, size)), number
    torch.cuda.synchronize()


def test_threads_allocate_side_by_side_while_events_are_recorded(pattern):
    wrong = []

    def work(seed):
        chosen = random.Random(seed)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            live = []
            for number in range(120):
                host = pattern(seed * 1000 + number, chosen.choice([600, 40_000, 2 * MIB]))
                live.append((host, host.to("cuda")))
                if len(live) > 8:
                    before, tensor = live.pop(chosen.randrange(len(live)))
                    if not torch.equal(before, tensor.cpu()):
                        wrong.append((seed, number, tensor.data_ptr()))
            stream.synchronize()

    torch.cuda.memory._record_memory_history(max_entries=10_000)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        torch.cuda.memory._snapshot()
        torch.cuda.empty_cache()
    for thread in threads:
        thread.join(60)
    torch.cuda.memory._record_memory_history(enabled=None)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_backward_runs_through_autograd_threads():
    torch.cuda.memory._record_memory_history()
    weight = torch.empty(256, 256, device="cuda", requires_grad=True)
    out = (torch.empty(64, 256, device="cuda") * weight[:64]).relu()
    out.backward(torch.empty_like(out))
    assert weight.grad.shape == weight.shape
    torch.cuda.memory._record_memory_history(enabled=None)


def test_what_several_streams_freed_goes_back_as_well():
    streams = [torch.cuda.Stream() for _ in range(3)]
    live = []
    for number in range(12):  # side by side in the same chunks
        with torch.cuda.stream(streams[number % 3]):
            live.append(torch.empty(600_000, dtype=torch.uint8, device="cuda"))
    live.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def base_of(inside):
    """Where the block around an address begins, and its bytes."""
    size = ctypes.c_size_t()
    return library().penstock_torch_base_alloc(inside, size), size.value


def test_raw_memory_and_its_base():
    address = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert torch.cuda.memory_allocated() == 3 * MIB
    assert base_of(address + 2 * MIB + 5) == (address, 3 * MIB)
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0


def test_the_base_of_a_stitched_block():
    blocks = [torch.empty(16 * MIB, dtype=torch.uint8, device="cuda") for _ in range(14)]
    del blocks[1::2]
    joined = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    for offset in (0, 40 * MIB, 100 * MIB - 1):
        assert base_of(joined.data_ptr() + offset) == (joined.data_ptr(), 100 * MIB)


def test_a_tensor_of_nothing_has_no_memory():
    assert torch.empty(0, device="cuda").numel() == 0
    assert torch.cuda.memory_allocated() == 0
