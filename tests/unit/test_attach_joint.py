# SPDX-License-Identifier: Apache-2.0
"""Small modules that are used together, and declared as one use, on the emulated GPU."""

from __future__ import annotations

import copy
import inspect
from contextlib import contextmanager
from functools import partial, wraps
from types import MethodType

import pytest
import torch
from attach_models import WIDTH, page, rows, same_passes, with_reference
from torch import nn
from torch.nn import functional as F

from penstock.native import Pager

pytestmark = pytest.mark.usefixtures("no_grad")

LAYERS = 4


class Attention(nn.Module):
    """Four projections; one of them, and a write to another, as the caller says."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, cross=True, write=False, fail=False):
        y = self.q(x) * torch.sigmoid(self.v(x))
        if cross:
            y = y + self.k(x)
        if fail:
            raise ValueError("in the middle")
        if write:
            with torch.no_grad():
                self.v.weight.mul_(1.01)
        return x + self.o(y)


class Tower(nn.Module):
    """Layers of them, and a head that is larger than any."""

    def __init__(self, head=8 * WIDTH):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, head)

    def forward(self, x, **how):
        for layer in self.layers:
            x = layer(x, **how)
        return self.head(x)


class Listed(Attention):
    """Its projections in a list that all run, with something without weights between them."""

    def __init__(self, apart=False):
        super().__init__()
        wide = nn.Linear(WIDTH, WIDTH if apart else WIDTH + 8)
        self.net = nn.ModuleList([wide, nn.GELU(), nn.Linear(wide.out_features, WIDTH)])

    def forward(self, x, **how):
        x = super().forward(x, **how)
        for part in self.net:
            x = part(x)
        return x


@pytest.fixture
def uses(monkeypatch):
    """Counts uses that begin."""
    begun = []
    begin = Pager.begin

    def counted(self, use, stream=0):
        begun.append(use)
        begin(self, use, stream)

    monkeypatch.setattr(Pager, "begin", counted)
    return begun


@pytest.fixture
def attached():
    """Attaches models, and detaches them in the end."""
    made = []

    def attach(model, kib=260, **more):
        torch.manual_seed(0)
        model, reference = with_reference(model)
        made.append(page(model, kib, look_ahead=256 * 1024, **more))
        return made[-1], model, reference

    yield attach
    for each in made:
        each.detach()


@pytest.mark.parametrize("safety", ["normal", "strict", "fast"])
def test_projections_of_an_attention_are_one_use(attached, uses, safety):
    held, model, reference = attached(Tower(), safety=safety)
    assert same_passes(model, reference)
    uses.clear()
    assert same_passes(model, reference, count=1)
    assert len(uses) == LAYERS + 1
    stats = held.stats()
    assert stats.iteration_bytes_in < stats.paged_bytes  # something stays


@pytest.mark.parametrize(("apart", "uses_of_one"), [(False, 1), (True, 6)])
def test_a_list_is_a_choice_only_where_its_modules_are_alike(attached, uses, apart, uses_of_one):
    tower = Tower()
    tower.layers = nn.ModuleList(Listed(apart) for _ in range(LAYERS))
    _held, model, reference = attached(tower, kib=320)
    assert same_passes(model, reference)
    uses.clear()
    assert same_passes(model, reference, count=1)
    assert len(uses) == uses_of_one * LAYERS + 1


def test_where_no_use_is_as_large_each_is_a_use_of_its_own(attached, uses):
    held, model, reference = attached(Tower(head=8), kib=160)
    assert held.pager.smallest() <= 6 * 4096 + held.stats().pinned_bytes  # one layer
    uses.clear()
    assert same_passes(model, reference, count=1)
    assert len(uses) >= 4 * LAYERS


def test_one_that_does_not_always_run_is_not_brought_along(attached, uses):
    held, model, reference = attached(Tower(), kib=240)
    assert same_passes(model, reference, count=1)
    assert same_passes(model, reference, cross=False)
    uses.clear()
    assert same_passes(model, reference, count=1, cross=False)
    assert len(uses) == 3 * LAYERS + 1
    stats = held.stats()
    # A projection is 4.06 pages and lies in 6 at the most, the head in 34.
    assert stats.iteration_page_uses <= 3 * LAYERS * 6 + 34 < (4 * LAYERS * 5 + 33)


def test_what_is_written_within_is_kept(attached):
    held, model, reference = attached(Tower(), kib=240)
    assert same_passes(model, reference, count=2)
    assert same_passes(model, reference, count=3, write=True)
    assert held.stats().iteration_bytes_out <= LAYERS * 6 * 4096  # v alone, not all four
    assert same_passes(model, reference)
    own = held.detach()  # and once more in the end, which does nothing
    assert torch.equal(own.layers[1].v.weight, reference.layers[1].v.weight)


def test_a_part_is_used_alone_and_after_an_error(attached, uses):
    _held, model, reference = attached(Tower(), kib=240)
    assert same_passes(model, reference, count=2)
    assert torch.equal(model.layers[2].k(rows()), reference.layers[2].k(rows()))
    assert torch.equal(model.layers[1](rows()), reference.layers[1](rows()))
    with pytest.raises(ValueError, match="in the middle"):
        model(rows(), fail=True)
    assert same_passes(model, reference, count=2)
    uses.clear()
    assert same_passes(model, reference, count=1)
    assert len(uses) == LAYERS + 1  # the error has not split the first


@pytest.mark.parametrize("safety", ["normal", "strict", "fast"])
def test_calls_of_parts_that_always_run_are_not_looked_at(attached, uses, safety):
    _held, model, reference = attached(Tower(), kib=240, safety=safety)
    parts = [part for layer in model.layers for part in layer.children()]
    assert same_passes(model, reference, count=2)
    assert all("forward" in part.__dict__ for part in parts)
    assert same_passes(model, reference, count=5)
    assert not any("forward" in part.__dict__ for part in parts)
    assert same_passes(model, reference, cross=False)  # right, if not for less
    for layer, own in zip(model.layers, reference.layers, strict=True):
        assert torch.equal(layer.k(rows()), own.k(rows()))  # by itself
    assert all("forward" in part.__dict__ for part in parts)
    uses.clear()
    assert torch.equal(model.layers[2].k(rows()), reference.layers[2].k(rows()))
    assert len(uses) == 1  # a use of its own again
    assert same_passes(model, reference)


class Across(Tower):
    """The last layer's projection is also called within the first one's turn."""

    def forward(self, x, across=False, **how):
        if across:
            x = x + self.layers[-1].q(x)
        return super().forward(x, **how)


def test_a_part_that_is_called_elsewhere_in_a_later_pass_is_right(attached):
    _held, model, reference = attached(Across(), kib=240)
    assert same_passes(model, reference, count=6)
    assert same_passes(model, reference, count=3, across=True)
    assert same_passes(model, reference, count=6)


class Beside(nn.Module):
    """Keeps tensors that leave room for one projection at a time."""

    def __init__(self):
        super().__init__()
        self.tower = Tower()

    def forward(self, x, elements=0):
        kept = torch.zeros(elements)
        for layer in self.tower.layers:
            x = layer(x)
        return x + kept.sum()


def test_where_all_of_it_does_not_fit_each_is_brought_alone(attached, uses):
    held, model, reference = attached(Beside(), kib=260)
    assert same_passes(model, reference, count=2)
    most = held.stats().peak_device_bytes
    uses.clear()
    assert same_passes(model, reference, elements=(260 - 48) * 256)
    assert len(uses) > 2 * 4 * LAYERS
    assert held.stats().peak_device_bytes <= 260 * 1024
    assert most > 0


def test_forward_is_the_models_own_again(attached):
    replaced = Tower()
    replaced.head.forward = own = replaced.head.forward  # somebody's, as accelerate does
    held, model, reference = attached(replaced)
    assert inspect.signature(model.layers[0].forward) == inspect.signature(Attention().forward)
    seen = []
    inner = model.layers[1].forward

    def counted(*args, **kwargs):
        seen.append(1)
        return inner(*args, **kwargs)

    model.layers[1].forward = counted  # around ours, and kept
    assert same_passes(model, reference)
    held.detach()
    assert model.head.forward == own
    assert "forward" not in vars(model.layers[0])
    assert torch.equal(model(rows()), reference(rows()))
    assert len(seen) == 5


def test_forward_is_a_method_as_it_was(attached):
    """Libraries take the function of it, as PEFT and compressed-tensors do."""
    _, model, reference = attached(Tower())
    for part in (model.head, *model.layers):
        function = part.forward.__func__
        part.forward = MethodType(wraps(function)(partial(function)), part)
    assert same_passes(model, reference)
    other = nn.Linear(WIDTH, WIDTH)
    bound = MethodType(model.layers[0].k.forward.__func__, other)
    assert torch.equal(bound(rows()), other(rows()))


class Doubling(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@contextmanager
def another_class(model):
    model.layers[1].k.__class__ = Doubling
    yield
    model.layers[1].k.__class__ = nn.Linear


@contextmanager
def a_patched_class(_model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, x: F.linear(x, 2 * self.weight))
        yield


@contextmanager
def a_copy_with_another_weight(model):
    own = model.layers[1].k
    model.layers[1].k = other = copy.copy(own)
    other._parameters = own._parameters.copy()
    other.weight = nn.Parameter(2 * own.weight.detach(), requires_grad=False)
    yield
    model.layers[1].k = own


@pytest.mark.parametrize("changed", [another_class, a_patched_class, a_copy_with_another_weight])
@pytest.mark.parametrize("passes_before", [1, 6])
def test_a_forward_that_changes_while_attached_counts(attached, changed, passes_before):
    held, model, reference = attached(Tower(), kib=300)
    assert same_passes(model, reference, count=passes_before)
    before = reference(rows())
    with changed(model), changed(reference):
        assert not torch.equal(reference(rows()), before)
        assert same_passes(model, reference)
        assert torch.equal(model.layers[1].k(rows()), reference.layers[1].k(rows()))
    assert same_passes(model, reference)
    assert held.stats().bytes_in > held.stats().gpu_memory_bytes


def test_a_shallow_copy_leads_back_to_nothing(attached):
    replaced = Tower()
    replaced.head.forward = own = replaced.head.forward
    held, model, reference = attached(replaced, kib=240)
    copies = [copy.copy(part) for part in (model.head, *model.layers)]
    assert torch.equal(copies[1].k(rows()), reference.layers[0].k(rows()))
    held.detach()
    assert copies[0].forward == own
    for part in copies:
        assert not vars(part).keys() & {"_apply", "__getstate__", "__prepare_scriptable__"}
    assert torch.equal(copies[2].half().k(rows().half()), model.layers[1].k(rows().half()))
