# SPDX-License-Identifier: Apache-2.0
"""Running out of memory, and what Penstock's allocator does not do."""

from __future__ import annotations

import ctypes

import pytest
import torch

from penstock.errors import PenstockError

MIB = 1 << 20


def take(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def test_running_out_raises_torch_s_own_error_and_the_process_goes_on(pattern):
    kept = pattern(1, 10 * MIB).cuda()
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            take(300 * MIB)
        text = str(caught.value)
        assert text.startswith("CUDA out of memory. Tried to allocate 300 MiB. GPU 0 has")
        assert "of its budget of 256 MiB; 10 MiB of that is in use" in text
        assert "gpu_memory" in text
        assert "\n" not in text
    assert isinstance(caught.value, RuntimeError)
    assert torch.cuda.memory_stats()["num_ooms"] == 3
    assert torch.equal(kept.cpu(), pattern(1, 10 * MIB))
    assert len(take(200 * MIB)) == 200 * MIB


def test_cached_memory_of_another_shape_is_no_obstacle():
    for _ in range(3):
        blocks = [take(20 * MIB) for _ in range(12)]
        del blocks
        large = take(240 * MIB)
        del large


def test_an_error_in_backward_arrives_in_the_calling_thread():
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad + take(400 * MIB)[: grad.numel()].view_as(grad)

    x = torch.empty(16, device="cuda", requires_grad=True)
    y = Greedy.apply(x)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 400 MiB"):
        y.backward(torch.empty_like(y))


def test_no_exception_is_left_under_way():
    # libstdc++ counts them; an error raised by one copy of it and caught by another would leave 1.
    uncaught = ctypes.CDLL("libstdc++.so.6")["_ZSt19uncaught_exceptionsv"]
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            take(300 * MIB)
        assert uncaught() == 0


def test_a_search_for_the_batch_size_ends_at_what_fits():
    memory = pytest.importorskip("accelerate.utils.memory")
    tried = []

    @memory.find_executable_batch_size(starting_batch_size=64)
    def train(batch_size):
        tried.append(batch_size)
        take(batch_size * 7 * MIB)
        return batch_size

    fits = train()
    assert tried[0] == 64
    assert fits * 7 <= 256
    assert tried[-2] * 7 > 256


def test_an_observer_is_told_before_the_error():
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: told.append(numbers))
    with pytest.raises(torch.OutOfMemoryError):
        take(300 * MIB)
    (device, size, total, free) = told[0]
    assert (device, size, total) == (0, 300 * MIB, 2048 * MIB)
    assert 0 < free <= total


@pytest.mark.parametrize(
    ("use", "alternative"),
    [
        (lambda: torch.cuda.MemPool(), "mode='mempool'"),
        (lambda: take(10).untyped_storage()._share_cuda_(), "tensor.cpu()"),
        (lambda: torch._C._cuda_getCheckpointState(0, (0, 0)), "cudagraph_trees = False"),
    ],
)
def test_what_is_missing_says_so_and_what_to_do_instead(use, alternative):
    with pytest.raises(PenstockError, match="try: ") as caught:
        use()
    assert alternative in caught.value.remedy
    assert isinstance(caught.value, RuntimeError)
