# SPDX-License-Identifier: Apache-2.0
"""What `penstock run` does at torch's import: Penstock allocates, and CUDA has not begun."""

from __future__ import annotations

HEAD = """
import torch
from penstock.paging import run_hook
"""


def test_penstock_allocates_and_cuda_has_not_begun(run_python):
    said = run_python(
        HEAD
        + """
assert run_hook.install() is True
assert run_hook.install() is True
assert not torch.cuda.is_initialized()
x = torch.ones(1 << 20, device="cuda")
print(torch.cuda.get_allocator_backend(), int(torch.cuda.memory_allocated()))
""",
        PENSTOCK_GPU_MEMORY="64MiB",
    )
    assert said.split() == ["pluggable", str(4 << 20)]


def test_a_fork_afterwards_may_use_cuda(run_python):
    said = run_python(
        HEAD
        + """
import os
assert run_hook.install() is True
if os.fork() == 0:
    torch.ones(10, device="cuda")
    print("child", torch.cuda.get_allocator_backend(), flush=True)
    os._exit(0)
print("ended with", os.wait()[1])
""",
    )
    assert said.split("\n")[:2] == ["child pluggable", "ended with 0"]


def test_a_program_that_enables_it_itself_goes_on(run_python):
    said = run_python(
        HEAD
        + """
import penstock
run_hook.install()
assert penstock.enable("48MiB") is True
""",
        PENSTOCK_GPU_MEMORY="64MiB",
    )
    assert "penstock run has decided" in said


def test_torchs_own_allocator_may_stay(run_python):
    said = run_python(
        HEAD + "print(run_hook.install(), torch.cuda.get_allocator_backend())",
        PENSTOCK_ALLOCATOR_STITCH="false",
    )
    assert said.startswith("False native\n")
