# SPDX-License-Identifier: Apache-2.0
"""The comparison of --check: every bit counts, and nothing compared is not a success."""

from __future__ import annotations

import math

import pytest
import torch

from penstock.runner.check import Comparison


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equal(dtype):
    logits = torch.randn(2, 3, 5).to(dtype)
    comparison = Comparison()
    comparison.add(logits, logits.clone())
    assert comparison.equal
    assert comparison.max_abs_diff == 0.0


def test_nothing_compared_is_not_equal():
    assert not Comparison().equal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_bit_is_a_difference(dtype):
    wanted = torch.ones(4, 8, dtype=dtype)
    got = wanted.clone()
    got[2, 3] = torch.nextafter(torch.tensor(1.0, dtype=dtype), torch.tensor(2.0, dtype=dtype))
    comparison = Comparison()
    comparison.add(wanted, wanted)
    comparison.add(got, wanted)
    assert not comparison.equal
    assert (comparison.outputs, comparison.different) == (2, 1)
    assert comparison.max_abs_diff == torch.finfo(dtype).eps


def test_zeros_of_another_sign_differ():
    comparison = Comparison()
    comparison.add(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not comparison.equal


def test_not_a_number_is_equal_to_itself_and_infinitely_far_from_others():
    comparison = Comparison()
    comparison.add(torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]))
    assert comparison.equal
    comparison.add(torch.tensor([math.nan]), torch.tensor([1.0]))
    assert comparison.max_abs_diff == math.inf


def test_a_baseline_that_is_not_finite_says_nothing():
    comparison = Comparison()
    comparison.add(torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, math.inf]))
    assert not comparison.equal


@pytest.mark.parametrize("other", [torch.zeros(2), torch.zeros(3, dtype=torch.float16)])
def test_another_shape_or_dtype_differs(other):
    comparison = Comparison()
    comparison.add(torch.zeros(3), other)
    assert not comparison.equal


def test_a_list_that_ends_early_differs():
    comparison = Comparison()
    comparison.add_all([torch.zeros(3)], [torch.zeros(3), torch.zeros(3)])
    assert (comparison.outputs, comparison.different) == (2, 1)


def test_with_a_tolerance_the_root_mean_square_counts():
    wanted = torch.ones(1000)
    got = wanted.clone()
    got[0] += 1.0  # a thirtieth in root mean square
    comparison = Comparison(0.05)
    comparison.add(got, wanted)
    assert comparison.equal
    assert comparison.max_relative_rms == pytest.approx(1000**-0.5)
    assert comparison.max_abs_diff == 1.0
    strict = Comparison(0.03)
    strict.add(got, wanted)
    assert not strict.equal
    got[1] = math.nan
    comparison.add(got, wanted)
    assert not comparison.equal
