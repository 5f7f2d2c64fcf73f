# SPDX-License-Identifier: Apache-2.0
"""Captured: what it refuses, and that without a GPU it is the function itself.

What a graph gives is compared with the step on a card, by benchmarks/fusion_conformance.py.
"""

from __future__ import annotations

import pytest
import torch

from penstock.errors import UsageError
from penstock.fusion import Captured


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


def test_what_is_given_as_an_example_stays_the_callers():
    example = torch.zeros(2)
    captured = Captured(torch.sum, example)
    captured(torch.ones(2))
    assert example.sum() == 0
