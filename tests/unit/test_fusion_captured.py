# SPDX-License-Identifier: Apache-2.0
"""Captured: what it refuses, and that without a GPU it is the function itself.

What a graph gives is compared with the step on a card, by benchmarks/fusion_conformance.py.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

from penstock.errors import UsageError
from penstock.fusion import Captured, captured


def test_without_a_gpu_a_call_is_the_functions():
    calls = []
    weight = torch.nn.Parameter(torch.ones(4))

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        weight.grad = None
        loss = (x * weight).sum()
        loss.backward()
        return loss

    captured = Captured(step, torch.zeros(3, 4))
    assert calls == []  # nothing to record, so nothing to rehearse
    x = torch.arange(12.0).view(3, 4)
    assert captured(x) == 66
    assert calls[0] is x
    torch.testing.assert_close(weight.grad, x.sum(0))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((torch.zeros(2, 5),), r"\(2, 5\), torch.float32, for a step .* \(2, 4\)"),
        ((torch.zeros(2, 4, dtype=torch.float64),), "torch.float64"),
        ((), "0 inputs for a step of 1"),
        ((torch.zeros(2, 4), torch.zeros(2, 4)), "2 inputs for a step of 1"),
    ],
)
def test_other_inputs_than_it_was_captured_with_are_refused(given, said):
    captured = Captured(torch.sum, torch.zeros(2, 4))
    with pytest.raises(UsageError, match=said):
        captured(*given)


def test_a_step_that_could_not_be_fed_or_read_is_refused():
    with pytest.raises(UsageError, match="without inputs"):
        Captured(lambda: None)
    with pytest.raises(UsageError, match="requires a gradient"):
        Captured(torch.sum, torch.zeros(2, requires_grad=True))


def test_what_is_given_as_an_example_stays_the_callers():
    example = torch.zeros(2)
    captured = Captured(torch.sum, example)
    captured(torch.ones(2))
    assert example.sum() == 0


class Stream:
    made = 0

    def __init__(self, device=None):
        Stream.made += 1

    def wait_stream(self, other):
        """There is nothing to wait for."""


def test_graphs_are_rehearsed_on_one_stream(monkeypatch):
    """With a stream for each, cuBLAS keeps a workspace for each."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream.__new__(Stream))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 97)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: contextlib.nullcontext())
    Stream.made = 0
    runs = []
    for number in range(3):
        _, result = captured.record(lambda number=number: runs.append(number) or number)
        assert result == number
    assert Stream.made == 1
    assert runs == [n for n in range(3) for _ in range(captured.REHEARSALS + 1)]
