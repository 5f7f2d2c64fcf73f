# SPDX-License-Identifier: Apache-2.0
"""Weights of an attached model that are given other data (``weight.data = x``)."""

from __future__ import annotations

import copy

import pytest
import torch
from attach_models import WIDTH, page, rows, same_passes, stack, with_reference
from torch import nn

from penstock.errors import OutOfMemory

pytestmark = pytest.mark.usefixtures("no_grad")

BOTH = pytest.mark.parametrize("safety", ["normal", "strict"])
ALL = pytest.mark.parametrize("kib", [80, 1024])  # streamed, and resident


def same_state(model, reference):
    mine, theirs = model.state_dict(), reference.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in theirs)


@BOTH
@ALL
def test_weights_that_are_put_back(safety, kib):
    """As averages are tried out: the model's own are kept meanwhile."""
    model, reference = with_reference(stack())
    averages = [0.9 * weight for weight in reference.parameters()]
    with page(model, kib, safety=safety):
        for _ in range(3):
            assert same_passes(model, reference, 2)
            kept = []
            for each in (model, reference):
                kept.append([weight.data for weight in each.parameters()])
                for weight, average in zip(each.parameters(), averages, strict=True):
                    weight.data = average
            assert same_passes(model, reference, 2)
            for average in averages:  # the weights are the same tensors
                average.mul_(0.9)
            assert same_passes(model, reference, 2)
            for each, own in zip((model, reference), kept, strict=True):
                for weight, before in zip(each.parameters(), own, strict=True):
                    weight.data = before
        assert same_passes(model, reference, 2)
        assert same_state(model, reference)
    assert same_state(model, reference)


def transpose(model):
    model[2].weight.data = model[2].weight.data.t()


def transpose_in_place(model):
    model[2].weight.t_()


def cut(model):
    model[2].weight.data = model[2].weight.data[:48]
    model[2].bias.data = model[2].bias.data[:48]
    model[3].weight.data = model[3].weight.data[:, :48]


def exchange(model):
    model[2].weight.data, model[3].weight.data = model[3].weight.data, model[2].weight.data


def tie(model):
    model[2].weight.data = model[3].weight.data


@BOTH
@ALL
@pytest.mark.parametrize("give", [transpose, transpose_in_place, cut, exchange, tie])
def test_weights_that_are_given_views_of_what_the_model_has(safety, kib, give):
    model, reference = with_reference(stack())
    with page(model, kib, safety=safety):
        assert same_passes(model, reference, 3)
        give(model), give(reference)
        for _ in range(2):
            assert same_passes(model, reference, 3)
            for each in (model, reference):
                each[3].weight.mul_(1.5)
            assert same_passes(model, reference, 3)
            assert same_state(model, reference)
    assert same_state(model, reference)
    assert same_passes(model, reference)


class Sums(nn.Module):
    """Two weights, and a buffer on a page of theirs, which forward writes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(40, 40) / 7)
        self.second = nn.Parameter(torch.randn(40, 40) / 7)
        self.register_buffer("sums", torch.zeros(300))

    def forward(self, x):
        self.sums.add_(x.mean())
        return torch.tanh(x @ self.first + x @ self.second + self.sums.mean())


@pytest.mark.parametrize("kib", [34, 1024])
def test_weights_exchanged_beside_a_buffer_that_forward_writes(kib):
    """The buffer's page goes out whole: not over what is changed at the host copy."""
    model, reference = with_reference(nn.Sequential(*(Sums() for _ in range(6))))
    x = torch.randn(3, 40)
    with page(model, kib):
        for step in range(5):
            for each in (model, reference):
                if step == 1:
                    one, other = each[0].first, each[1].first
                    one.data, other.data = other.data, one.data
                each[0].first.add_(0.1), each[1].first.add_(0.2)
            assert torch.equal(model(x), reference(x))
            if step > 2:
                assert same_state(model, reference)
    assert same_state(model, reference)


@pytest.fixture
def future():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@ALL
@pytest.mark.usefixtures("future")
def test_loading_that_swaps(kib):
    model, reference = with_reference(stack())
    with page(model, kib) as attached:
        assert same_passes(model, reference, 2)
        for seed in range(2):
            torch.manual_seed(seed)
            state = {
                name: torch.randn_like(value) for name, value in reference.state_dict().items()
            }
            model.load_state_dict(dict(state)), reference.load_state_dict(dict(state))
            assert same_passes(model, reference, 2)
        assert model[2].weight.untyped_storage().data_ptr() in attached.store.addresses()
    assert same_state(model, reference)


@ALL
def test_swapped_tensors(kib):
    model, reference = with_reference(stack())
    with page(model, kib):
        for _ in range(3):
            assert same_passes(model, reference, 2)
            for each in (model, reference):
                torch.utils.swap_tensors(each[2].weight, each[3].weight)
                torch.utils.swap_tensors(each[4].weight, nn.Parameter(torch.eye(WIDTH)))
                each[2].weight.mul_(1.1)
        assert same_passes(model, reference, 2)
        assert same_state(model, reference)
    assert same_state(model, reference)


@BOTH
@ALL
@pytest.mark.parametrize("view", [torch.Tensor.detach, lambda weight: weight.data])
def test_one_view_that_is_kept(safety, kib, view):
    model, reference = with_reference(stack())
    with page(model, kib, safety=safety):
        assert same_passes(model, reference, 2)
        views = view(model[2].weight), view(reference[2].weight)
        for _ in range(3):
            for each in views:
                each.mul_(1.1)
            assert same_passes(model, reference, 2)
        assert same_state(model, reference)
    assert same_state(model, reference)


@ALL
def test_a_view_that_forward_gives(kib):
    class Turns(nn.Linear):
        def forward(self, x):
            self.weight.data = self.weight.data.t()
            return super().forward(x)

    model, reference = with_reference(nn.Sequential(*(Turns(WIDTH, WIDTH) for _ in range(8))))
    with page(model, kib):
        for _ in range(3):
            assert same_passes(model, reference, 3)
            assert same_state(model, reference)
    assert same_state(model, reference)


def test_data_of_their_own_are_paged_again():
    model, reference = with_reference(stack())
    with page(model) as attached:
        assert same_passes(model, reference, 2)
        for each in (model, reference):
            each[2].weight.data = each[2].weight.data * 0.9
        assert torch.equal(model(rows()), reference(rows()))
        assert model[2].weight.untyped_storage().data_ptr() in attached.store.addresses()


class Observer(nn.Module):
    """Keeps the largest of each column; how many there are it knows from its first pass on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.zeros(1))

    def forward(self, x):
        if self.most.numel() != x.shape[-1]:
            self.most.resize_(x.shape[-1]).zero_()
        return torch.maximum(self.most, x.amax(0), out=self.most) * x


def test_a_buffer_that_grows_in_a_pass_is_refused_and_the_model_given_back():
    model = nn.Sequential(stack(), Observer())
    refused = pytest.raises(RuntimeError, match=r"not resizable.*a pass .* before it is attached")
    with page(model, 1024), refused:
        model(rows())
    assert model[1].most.shape == (1,)
    reference = copy.deepcopy(model)
    model(rows()), reference(rows())
    with page(model, 1024):
        assert same_passes(model, reference)


class Swaps(nn.Sequential):
    """Each layer runs with the bias of the next one."""

    def forward(self, x):
        for one, other in zip(self, (*self[1:], self[0]), strict=True):
            torch.utils.swap_tensors(one.bias, other.bias)
            x = one(x)
        return x


@pytest.mark.parametrize("kib", [28, 80])
def test_tensors_that_forward_swaps(kib):
    model, reference = with_reference(Swaps(*stack()))
    with page(model, kib):
        assert same_passes(model, reference, 2)


def test_tensors_that_forward_swaps_where_the_budget_does_not_hold_both():
    model, _ = with_reference(Swaps(*stack()))
    with (
        page(model, 20),
        pytest.raises(OutOfMemory, match=r"1\.bias is used together.*larger gpu_memory"),
    ):
        model(rows())
