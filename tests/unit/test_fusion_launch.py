# SPDX-License-Identifier: Apache-2.0
"""`Start`: the second call of a kernel hands over what the first one found, and nothing else.

Triton compiles for a GPU that is not here; its driver is replaced by one that notes what it gets.
"""

from __future__ import annotations

import os

import pytest
import torch

from penstock.fusion.launch import Start

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET", "") != "", reason="the interpreter compiles nothing"
)
CPU = torch.device("cpu")


class NotingDriver:
    """What Triton asks a driver for, on a card that does not exist."""

    def __init__(self):
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", 90, 32)
        self.utils = self
        self.launched = []
        self.registers = []  # that each kernel may take

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 77

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448}

    def load_binary(self, *_):
        # Module, function, registers, spills, most threads. A kernel with a module asks the driver
        # once more when it goes, and raises where there is none, which is wherever garbage happens
        # to be collected. Within a parser Python 3.11 made a SystemError of it, in another test.
        return None, 2, 32, 0, 1024

    def launcher_cls(self, source, metadata):
        self.registers.append(metadata.maxnreg)

        def launch(*arguments):
            grid, stream, rest = arguments[:3], arguments[3], arguments[9:]
            addresses = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in rest]
            tensors = sum(isinstance(a, torch.Tensor) for a in rest)
            self.launched.append((grid, stream, addresses, tensors, source.attrs))

        return launch


@pytest.fixture
def driver(monkeypatch):
    from triton.runtime.driver import driver as active

    noting = NotingDriver()
    monkeypatch.setattr(active, "_active", noting)
    return noting


def kernel_of_its_own():
    @triton.jit
    def scaled(x_ptr, y_ptr, N, scale, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < N) * scale, mask=at < N)

    return scaled


def test_later_calls_hand_over_addresses(driver):
    start = Start(kernel_of_its_own(), 3, (64, 0.5), {"BLOCK": 64}, device=CPU, warps=1)
    x, y, other = torch.empty(64), torch.empty(64), torch.empty(80)
    start(x, y)
    start(y, x)
    start(x, other[1:65])  # 4 bytes off: Triton has to compile for that
    start(y, y)
    first, second, unaligned, last = driver.launched
    # What Triton itself hands over, and with tensors in it: that is the slow way.
    assert first[:4] == ((3, 1, 1), 77, [x.data_ptr(), y.data_ptr(), 64, 0.5, 64], 2)
    assert second[:4] == ((3, 1, 1), 77, [y.data_ptr(), x.data_ptr(), 64, 0.5, 64], 0)
    assert unaligned[2:4] == ([x.data_ptr(), other.data_ptr() + 4, 64, 0.5, 64], 2)
    assert last[2:4] == ([y.data_ptr(), y.data_ptr(), 64, 0.5, 64], 0)
    assert second[4] == first[4] != unaligned[4]


def test_a_first_call_off_its_alignment_is_not_kept(driver):
    start = Start(kernel_of_its_own(), 1, (64, 0.5), {"BLOCK": 64}, device=CPU, warps=1)
    x, y = torch.empty(80), torch.empty(64)
    for tensors in ((x[1:65], y), (x, y), (x, y)):
        start(*tensors)
    assert [tensors for *_, tensors, _ in driver.launched] == [2, 2, 0]
    assert driver.launched[0][4] != driver.launched[1][4] == driver.launched[2][4]


def test_a_kernel_is_compiled_for_so_many_registers(driver):
    x = torch.ones(8)
    for registers in (None, 64):
        start = Start(
            kernel_of_its_own(), 1, (8, 2.0), {"BLOCK": 8}, device=CPU, warps=1, registers=registers
        )
        start(x, x)
    assert list(dict.fromkeys(driver.registers)) == [None, 64]
