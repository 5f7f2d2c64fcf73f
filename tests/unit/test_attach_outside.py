# SPDX-License-Identifier: Apache-2.0
"""Modules that hold a weight of an attached model and are no part of it: they work as before."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from attach_models import page, rows, same_passes, stack, with_reference

from penstock.errors import UsageError

pytestmark = pytest.mark.usefixtures("no_attachments")


def sharing(*models):
    """Another model, with a weight of each of these, and what it computes."""
    other = stack()
    for number, model in enumerate(models):
        other[2 * number].weight = model[number].weight
    return with_reference(other)


def test_it_works_before_and_after_passes_and_beside_a_refusal():
    model, reference = with_reference(stack())
    other, expected = sharing(model)
    with page(model):
        for _ in range(3):
            assert same_passes(other, expected, 2)
            assert same_passes(model, reference, 2)
        with pytest.raises(UsageError, match=r"0\.weight is a weight of another model"):
            page(other)
        assert same_passes(other, expected, 2)
        state = other.state_dict()
        assert all(torch.equal(state[name], value) for name, value in expected.state_dict().items())
        with pytest.raises(UsageError, match="cannot be copied"):
            copy.deepcopy(other)
    assert type(other[0]._parameters) is dict
    assert same_passes(other, expected, 2)


def test_what_it_writes_is_the_models_as_well():
    model, reference = with_reference(stack())
    other, _ = sharing(model)
    with page(model):
        assert same_passes(model, reference)
        other[0].weight.mul_(2)
        reference[0].weight.mul_(2)
        assert same_passes(model, reference)


def test_a_weight_of_each_of_two_attachments():
    first, second = stack(), stack()
    other, expected = sharing(first, second)
    one, two = page(first), page(second)
    first(rows())
    second(rows())
    assert same_passes(other, expected, 2)
    one.detach()
    assert same_passes(other, expected, 2)
    second(rows())
    assert same_passes(other, expected, 2)
    two.detach()
    assert type(other[2]._parameters) is dict


def test_it_outlives_the_model():
    model = stack()
    other, expected = sharing(model)
    page(model)
    model(rows())
    del model
    gc.collect()
    assert same_passes(other, expected, 2)
