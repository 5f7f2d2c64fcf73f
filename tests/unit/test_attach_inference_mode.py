# SPDX-License-Identifier: Apache-2.0
"""inference_mode(), wherever a program has it: a tensor stays of the kind that it was made as."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from attach_models import page, rows, stack
from torch import nn

from penstock.paging.managed import attach_managed
from penstock.units import MIB

# Where it is: around what makes the model, attaches it, runs it and detaches it.
PLACES = list(itertools.product((False, True), repeat=4))


def make():
    torch.manual_seed(0)
    return nn.Sequential(*stack(7), nn.BatchNorm1d(64)).eval()


def inference(mode):
    return torch.inference_mode(mode)


def same_runs(model, reference, mode):
    with inference(mode), torch.no_grad():
        return all(torch.equal(model(rows(seed=n)), reference(rows(seed=n))) for n in range(4))


def doubled(model):
    for weight in (model[1].weight, model[4].weight):
        with inference(weight.is_inference()), torch.no_grad():
            weight.mul_(2)


@pytest.mark.parametrize("safety", ["normal", "strict"])
@pytest.mark.parametrize(("made", "attached", "run", "detached"), PLACES)
def test_inference_mode_around_each_part_of_a_models_life(made, attached, run, detached, safety):
    with inference(made):
        model, reference = make(), make()
    with inference(attached):
        attachment = page(model, safety=safety)
    assert same_runs(model, reference, run)
    for each in (model, reference):
        doubled(each)
    assert same_runs(model, reference, run)
    with inference(attached):
        state = model.state_dict()
    assert not any(tensor.is_inference() for tensor in state.values()) or made
    with inference(detached):
        attachment.detach()
    assert all(tensor.is_inference() == made for tensor in model.state_dict().values())
    assert same_runs(model, reference, run)
    if not made:  # what is to be trained
        model(rows()).sum().backward()


@pytest.mark.parametrize("made", [False, True])
def test_a_model_on_meta_is_filled_under_inference_mode(made):
    reference = make()
    state = reference.state_dict()
    with inference(made), torch.device("meta"):
        model = make()
    with inference(mode=True):
        attachment = page(model, load=lambda name, to: to.copy_(state[name]))
    assert same_runs(model, reference, mode=False)
    attachment.detach()
    assert not any(parameter.is_inference() for parameter in model.parameters())


class Functional(nn.Module):
    """Applies all its layers as functions of their weights, as TransformerEncoderLayer does."""

    def __init__(self):
        super().__init__()
        self.layers = stack()

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(nn.functional.linear(x, layer.weight, layer.bias))
        return x


@pytest.mark.parametrize("safety", ["normal", "strict"])
def test_reads_give_way_to_others_under_inference_mode(safety):
    model = Functional()
    reference = copy.deepcopy(model)
    with page(model, safety=safety):
        assert same_runs(model, reference, mode=True)


@pytest.mark.parametrize("rows_more", [0, 8])
def test_data_that_are_given_under_inference_mode(rows_more):
    """As transformers' resize_token_embeddings() does."""
    model = make()
    reference = copy.deepcopy(model)
    with page(model), inference(mode=True):
        model(rows())
        for each in (model, reference):
            each[5].weight.data = torch.full((64 + rows_more, 64), 0.01)
            each[5].bias.data = torch.ones(64 + rows_more)
            each[6].weight.data = torch.ones(64, 64 + rows_more)
        assert same_runs(model, reference, mode=True)


def test_managed_memory_under_inference_mode():
    model = make()
    reference = copy.deepcopy(model)
    with inference(mode=True):
        attachment = attach_managed(model, device="emulated", gpu_memory=8 * MIB)
    for mode in (False, True):
        assert same_runs(model, reference, mode)
    with inference(mode=True):
        attachment.detach()
    model(rows()).sum().backward()
