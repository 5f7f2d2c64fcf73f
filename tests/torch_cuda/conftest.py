# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests against CUDA builds of torch; run.py sets the environment up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Elsewhere (make test) there is no CUDA build of torch to test.
collect_ignore_glob = [] if os.environ.get("FAKE_CUDA") else ["test_*.py"]

BUDGET = 256 << 20
MIB = 1 << 20


@pytest.fixture(scope="session", autouse=True)
def enabled():
    """Penstock allocates in this process: once for all tests, since it cannot be undone."""
    import torch

    import penstock

    assert torch.version.cuda, "this must be a CUDA build"
    assert torch.__version__.split("+")[0] == os.environ["FAKE_CUDA"]
    assert penstock.enable(gpu_memory=BUDGET) is True


@pytest.fixture(autouse=True)
def empty():
    """Each test begins and ends with nothing allocated."""
    import gc

    import torch

    def clear():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    clear()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    yield
    clear()
    assert torch.cuda.memory_allocated() == 0


@pytest.fixture
def run_python():
    """Run a program in a process of its own; its output, and it must end well."""

    def run(code, *, expect=0, **variables):
        environment = {**os.environ, **variables}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def pattern():
    """Different bytes for each number, on the host."""
    import torch

    period = 65_521  # a prime: blocks of any round size differ in where they begin
    ramp = torch.arange(period, dtype=torch.int64) * 2654435761

    def make(number, size):
        return (ramp + number * 97).to(torch.uint8).repeat(-(-size // period))[:size]

    return make
