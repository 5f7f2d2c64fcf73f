# SPDX-License-Identifier: Apache-2.0
"""Embeddings whose table is another module's matrix, on the emulated GPU."""

from __future__ import annotations

import pytest
import torch
from attach_models import PAGE, WIDTH, page, stack, with_reference
from torch import nn
from torch.nn import functional as F

WORDS = 2048  # of 64 numbers: 512 KiB


class Tied(nn.Module):
    """Embedding, layers, and a head of the same weight; what it does besides, its caller says."""

    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), stack(48)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        self.write = self.head_first = False

    def forward(self, ids):
        if self.head_first:  # reads the table on the device, and holds it there
            bias = F.linear(self.embed.weight[:1], self.head.weight).mean()
        x = self.embed(ids)
        if self.write:
            with torch.no_grad():
                self.embed.weight.mul_(1.01)
        x = self.head(self.layers(x))
        return x + bias if self.head_first else x


def ids(count, seed=0):
    return torch.randint(0, WORDS, (1, count), generator=torch.Generator().manual_seed(seed))


def check(model, reference, count=4, seeds=4):
    return all(torch.equal(model(ids(count, seed)), reference(ids(count, seed)))
               for seed in range(seeds))  # fmt: skip


@pytest.fixture
def tied():
    torch.manual_seed(0)
    model, reference = with_reference(Tied())
    with torch.no_grad(), page(model, 1100) as attached:
        assert check(model, reference)
        yield model, reference, attached


def test_rows_are_read_at_the_host_copy(tied):
    model, reference, attached = tied

    def page_uses(count):
        before = attached.stats().page_uses
        assert torch.equal(model.embed(ids(count)), reference.embed(ids(count)))
        return attached.stats().page_uses - before

    assert page_uses(4) == 0
    assert page_uses(WORDS) == WORDS * WIDTH * 4 // PAGE  # as many rows as the table has
    assert page_uses(4) == 0
    assert check(model, reference)


def test_changes_between_passes_are_seen(tied):
    model, reference, _ = tied
    for factor in (2.0, 0.5, 3.0):
        for each in (model, reference):
            each.embed.weight.mul_(factor)
        assert check(model, reference)
    assert torch.equal(model.state_dict()["head.weight"], reference.state_dict()["head.weight"])


def test_changes_within_a_pass_are_seen(tied):
    model, reference, _ = tied
    model.write = reference.write = True
    assert check(model, reference)
    model.write = reference.write = False
    assert check(model, reference)


def test_a_table_that_is_in_use_is_read_on_the_device(tied):
    model, reference, _ = tied
    model.head_first = reference.head_first = True
    assert check(model, reference)


def test_an_embedding_called_alone(tied):
    model, reference, _ = tied
    assert torch.equal(model.embed(ids(4)), reference.embed(ids(4)))
    assert check(model, reference)
    with pytest.raises(IndexError):
        model.embed(ids(4) + WORDS)
    assert check(model, reference)


def test_a_table_of_its_own_comes_to_the_device_where_all_fits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *stack(4)).eval()
    with torch.no_grad(), page(model, 1600) as attached:
        for seed in range(8):
            model(ids(4, seed))
        assert attached.explain().startswith("everything stays on the device")


def aliases(state):
    return state["embed.weight"].data_ptr() == state["head.weight"].data_ptr()


def test_a_tied_weight_is_one_tensor_in_state_dicts(tied):
    model, reference, _ = tied
    state = model.state_dict()
    assert aliases(state)
    assert aliases(reference.state_dict())
    for each in (model, reference):
        each.embed.weight.mul_(2)
    head = model.head.state_dict(destination=state, prefix="head.")
    assert not aliases(head)  # whose other name has the content of before
    assert torch.equal(head["head.weight"], reference.head.weight)
    assert aliases(model.state_dict())
    assert torch.equal(model.state_dict(destination=state)["embed.weight"], reference.head.weight)
