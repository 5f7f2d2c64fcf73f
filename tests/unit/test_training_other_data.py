# SPDX-License-Identifier: Apache-2.0
"""Weights in training that are given other data (``weight.data = x``), as by merged adapters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from training_both import backward, make, same
from training_tower import adamw, page, pair

from penstock.errors import UsageError


@pytest.mark.parametrize("keeps", [False, True])
def test_they_are_the_content_from_then_on(keeps):
    """Between steps, of a tied weight too, and before a step that has its gradients yet."""

    def step(model, optimizer, n):
        if n % 3 == 2:
            for weight in (
                model.table.weight,
                model.layers[0].up.weight,
                model.layers[1].down.bias,
            ):
                weight.data = weight.data * 1.25
        loss = backward(model, n)
        if keeps:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            model.layers[1].up.weight.data = model.layers[1].up.weight.data * 0.5
        optimizer.step()
        optimizer.zero_grad()
        return loss

    same(step, in_backward=not keeps)


def kept(weight):
    data = weight.data * 2
    return data, data


def a_piece(weight):
    data = torch.cat([weight.data, weight.data])
    return data, data[: len(weight)]


def wider(weight):
    return None, weight.data.double()


@pytest.mark.parametrize("make_data", [kept, a_piece, wider])
def test_what_others_have_too_or_is_of_another_kind_is_refused(make_data):
    _, model = pair(make)
    optimizer = adamw(model)
    weight = model.layers[0].up.weight
    with page(model, optimizer, chunks=8):
        backward(model, 0)
        optimizer.step()
        others, weight.data = make_data(weight)
        with pytest.raises(UsageError, match=r"layers\.0\.up\.weight was replaced.*copy_"):
            backward(model, 1)
        del others


def test_a_part_that_is_converted_is_refused_in_that_line():
    _, model = pair(make)
    optimizer = adamw(model)
    with page(model, optimizer, chunks=8):
        with pytest.raises(UsageError, match="attach"):
            model.layers[0].double()
        assert model.layers[0].up.weight.dtype is torch.float32
        backward(model, 0)
        optimizer.step()


def test_after_an_update_in_backward_they_come_too_late():
    _, model = pair(make)
    optimizer = adamw(model)
    weight = model.layers[0].up.weight
    with page(model, optimizer, chunks=8, step_in_backward=True):
        backward(model, 0)
        weight.data = torch.ones(weight.shape)
        with pytest.raises(UsageError, match=r"layers\.0\.up\.weight was replaced.*copy_"):
            optimizer.step()
