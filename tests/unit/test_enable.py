# SPDX-License-Identifier: Apache-2.0
"""penstock.enable() where it must refuse; tests/torch_cuda has the rest."""

from __future__ import annotations

import sys

import pytest
import torch

import penstock
from penstock.allocator import compile as allocator_compile
from penstock.allocator import enabling

NO_CUDA = pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a GPU: tests/torch_cuda has what happens then"
)


@NO_CUDA
@pytest.mark.parametrize("call", [penstock.enable, penstock.mem_pool])
def test_without_cuda_it_is_refused_with_the_remedy(call):
    with pytest.raises(penstock.EnvironmentProblem, match="needs a CUDA") as caught:
        call()
    assert caught.value.exit_code == 3
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"mode": "pool"}, "mode"),
        ({"gpu_memory": "much"}, "much"),
        ({"gpu_memory": "120%"}, "120%"),
        ({"stitch_when": "never-ever"}, "never-ever"),
        ({"reuse_limit": 0.5}, "0.5"),
        ({"chunk": "-2MiB"}, "-2MiB"),
        ({"stitch": "perhaps"}, "perhaps"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, word):
    with pytest.raises(penstock.UsageError, match=word):
        penstock.enable(**arguments)


def test_the_budget_is_bytes_or_a_share():
    assert enabling.budget_options("auto") == {}
    assert enabling.budget_options("2GiB") == {"budget": 2 << 30}
    assert enabling.budget_options("80%")["budget_share"] == pytest.approx(0.8)


def test_graph_trees_are_switched_off_when_inductor_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, allocator_compile.CONFIG, raising=False)
    before = list(sys.meta_path)
    allocator_compile.without_graph_trees()
    try:
        import torch._inductor.config as config

        assert config.triton.cudagraph_trees is False
        assert sys.meta_path == before
        config.triton.cudagraph_trees = True
    finally:
        sys.meta_path[:] = before
