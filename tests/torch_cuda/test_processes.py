# SPDX-License-Identifier: Apache-2.0
"""penstock.enable() itself: each case needs a process that has not used CUDA."""

from __future__ import annotations

import pytest

HEAD = """
import torch, penstock
MIB = 1 << 20
"""


def test_an_enabled_process_ends_well_with_tensors_alive(run_python):
    said = run_python(
        HEAD
        + """
assert penstock.enable(gpu_memory="10%")
kept = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
print(torch.cuda.get_allocator_backend(), torch.cuda.get_per_process_memory_fraction())
"""
    )
    assert said.split() == ["pluggable", "0.1"]


def test_a_second_call_must_say_the_same(run_python):
    said = run_python(
        HEAD
        + """
assert penstock.enable("64MiB", stitch_when="when-full")
torch.empty(1, device="cuda")
assert penstock.enable("64MiB", stitch_when="when-full")
try:
    penstock.enable("65MiB", stitch_when="when-full")
except penstock.UsageError as error:
    print(error)
"""
    )
    assert "budget 67108864, now 68157440" in said


@pytest.mark.parametrize("use", ["torch.empty(1, device='cuda')", "torch.cuda.init()"])
def test_after_the_first_use_of_cuda_it_is_too_late(run_python, use):
    said = run_python(
        HEAD
        + use
        + """
try:
    penstock.enable()
except penstock.UsageError as error:
    print(error)
print(torch.cuda.get_allocator_backend(), torch.cuda.memory_stats() is not None)
"""
    )
    assert "used already" in said
    assert "right after the imports" in said
    assert said.split()[-2:] == ["native", "True"]


@pytest.mark.parametrize("variable", ["PENSTOCK_ALLOCATOR_STITCH", "vmmDefragment"])
def test_the_switch_leaves_torch_s_own_allocator(run_python, variable):
    said = run_python(
        HEAD
        + """
print(penstock.enable())
kept = torch.empty(MIB, device="cuda")
print(torch.cuda.get_allocator_backend(), torch.cuda.memory_stats()["segment.all.current"])
""",
        **{variable: "0"},
    )
    assert "torch's own caching allocator stays in place" in said
    assert said.index("False") < said.index("native 1")


def test_torch_s_own_variables_are_said_to_have_no_effect(run_python):
    said = run_python(
        HEAD + "penstock.enable()", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"
    )
    assert "PYTORCH_CUDA_ALLOC_CONF has no effect" in said


@pytest.mark.parametrize("before", [{}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}])
@pytest.mark.parametrize("allocator", ["native", "expandable"])
def test_a_fine_tune_gets_the_allocator_of_torch_that_it_asks_for(run_python, allocator, before):
    from penstock.finetune.allocators import variables
    from penstock.finetune.request import Request

    told = variables(Request("tiny", allocator=allocator), before)
    said = run_python(
        """
import torch
torch.cuda.init()
settings = torch.cuda.memory._snapshot()["allocator_settings"]
print(settings["expandable_segments"], settings["max_split_size"] >> 20)
""",
        **{**before, **told},
    )
    assert said.split() == [str(allocator == "expandable"), "64" if before else "-1"]


def test_inductor_captures_without_trees(run_python):
    said = run_python(
        HEAD
        + """
import sys
penstock.enable()
assert "torch._inductor.config" not in sys.modules
import torch._inductor.config as config
print(config.triton.cudagraph_trees)
"""
    )
    assert said.split()[-1] == "False"


def test_a_capture_may_be_the_first_thing_that_happens(run_python):
    said = run_python(
        HEAD
        + """
penstock.enable()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    a = torch.empty(MIB, device="cuda")
graph.replay()
print(torch.cuda.memory_allocated() >= 4 * MIB)
"""
    )
    assert said.split()[-1] == "True"


def test_behind_a_mem_pool(run_python):
    said = run_python(
        HEAD
        + """
from penstock.native.torch_allocator import TorchAllocator
assert penstock.enable("128MiB", mode="mempool")
host = torch.arange(3 * MIB, dtype=torch.int32)
tensor = host.cuda()
assert torch.equal(tensor.cpu(), host)
print("backend", torch.cuda.get_allocator_backend())
print("ours", TorchAllocator(0).stats().allocated_bytes[0].current // MIB)
print("torch", torch.cuda.memory_reserved() // MIB, torch.cuda.memory_allocated() // MIB)
print("pool", [tuple(s["segment_pool_id"]) != (0, 0) for s in torch.cuda.memory_snapshot()])
for _ in range(2):
    try:
        torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print("caught", str(error)[:19])
print("after", torch.empty(50 * MIB, dtype=torch.uint8, device="cuda").numel() // MIB)
"""
    )
    assert "backend native" in said
    assert "ours 20" in said or "ours 12" in said
    assert "pool [True" in said
    assert said.count("caught CUDA out of memory") == 2
    assert "after 50" in said


def test_a_pool_of_one_s_own(run_python):
    said = run_python(
        HEAD
        + """
from penstock.native.torch_allocator import TorchAllocator
pool = penstock.mem_pool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
outside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
held = lambda: TorchAllocator(0).stats().allocated_bytes[0].current // MIB
print("ours", held(), "torch", torch.cuda.memory_allocated() // MIB)
del inside, pool
torch.cuda.empty_cache()
print("then", held())
"""
    )
    assert "ours 30 torch 60" in said
    assert "then 0" in said


def test_cudnn_does_not_search(run_python):
    # A convolution would raise "CUDAPluggableAllocator does not yet support cacheInfo".
    said = run_python(
        "import torch, penstock\n"
        "cudnn = torch.backends.cudnn\n"
        "cudnn.benchmark = True\n"
        "penstock.enable()\n"
        "print('first', cudnn.benchmark)\n"
        "cudnn.benchmark = True\n"
        "print('second', cudnn.benchmark)\n"
        "with cudnn.flags(enabled=True, benchmark=True):\n"
        "    print('third', cudnn.benchmark)\n"
    )
    for line in ("first False", "second False", "third False"):
        assert line in said
    assert said.count("benchmark stays off") == 1
