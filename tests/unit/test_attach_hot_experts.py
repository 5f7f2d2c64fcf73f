# SPDX-License-Identifier: Apache-2.0
"""Experts that are chosen often stay on the device, wherever they lie in their tensor."""

from __future__ import annotations

import os

import pytest
import torch
from attach_experts import (
    ARCHITECTURES,
    CHOSEN,
    EXPERTS,
    LAYERS,
    ROW,
    Mixture,
    of_transformers,
    same,
)
from attach_models import page, rows, with_reference
from torch import nn

from penstock.paging.attach import chunk_size_for, needed_alone, typical_block
from penstock.paging.blocks import collect_blocks
from penstock.paging.chosen import Chosen
from penstock.paging.split_rows import IndexedParameter, SplitRows
from penstock.paging.use import Use
from penstock.units import MIB

HOT = range(1, EXPERTS, 4)  # of each layer


def favouring(hot):
    """A mixture whose routers choose among these experts, whatever comes."""
    torch.manual_seed(1)
    made = Mixture()
    for router in made.router:
        router.bias.data[:] = -100.0
        router.bias.data[list(hot)] = 0.0
    return with_reference(made)


@pytest.fixture
def mixture():
    model, reference = favouring(HOT)
    weights = sum(p.nbytes for p in model.parameters())
    with torch.no_grad(), page(model, weights // 2048) as attached:
        yield model, reference, attached


def read_in_place(model, reference, attached, seeds):
    read = 0
    for seed in seeds:
        assert torch.equal(model(rows(1, seed)), reference(rows(1, seed)))
        read += attached.stats().in_place_bytes
    return read // len(seeds)


def test_what_is_chosen_often_stays(mixture):
    chosen = LAYERS * CHOSEN * ROW
    first = read_in_place(*mixture, range(2))
    assert first > chosen / 3
    read_in_place(*mixture, range(60))
    before = mixture[2].stats().bytes_in
    assert read_in_place(*mixture, range(60, 68)) == 0
    assert mixture[2].stats().bytes_in == before


def test_others_become_favourites(mixture):
    model, reference, _ = mixture
    read_in_place(*mixture, range(40))
    for each in (model, reference):
        with torch.no_grad():
            for router in each.router:
                router.bias.copy_(router.bias.roll(2))
    first = read_in_place(*mixture, range(4))
    assert read_in_place(*mixture, range(60, 160)) < first / 2
    assert read_in_place(*mixture, range(160, 170)) < first / 8


def test_favourites_that_are_changed_between_passes(mixture):
    model, reference, _ = mixture
    read_in_place(*mixture, range(20))
    for each in (model, reference):
        each.experts[2].up[HOT[1]].mul_(1.5)
        each.experts[3].down.data[HOT[2]] = 0.25
    assert same(model, reference)
    for each in (model, reference):
        each.experts[4].up.data = each.experts[4].up.data * 1.25
    assert same(model, reference)


def test_favourites_that_forward_changes(mixture):
    model, reference, _ = mixture
    read_in_place(*mixture, range(20))
    for each in (model, reference):
        each.experts[1].write = True
    assert same(model, reference)


def test_prompts_between_tokens(mixture):
    model, reference, attached = mixture
    read_in_place(*mixture, range(60))
    assert same(model, reference, tokens=EXPERTS, seeds=2)
    assert read_in_place(*mixture, range(20, 30)) < LAYERS * CHOSEN * ROW / 8
    attached.resize(attached.budget // 2)
    assert same(model, reference, seeds=20)
    attached.resize(attached.budget * 2)
    assert same(model, reference, seeds=20)


@pytest.mark.parametrize(
    "index",
    [
        lambda indices: indices.long(),
        lambda indices: indices.int(),
        lambda indices: indices - EXPERTS,
        lambda indices: indices[None],
        lambda indices: indices[:1],
        lambda indices: indices[0],
        lambda indices: (indices, slice(3, 9)),
        lambda indices: indices.tolist(),
        lambda indices: torch.arange(EXPERTS) == indices[0],
        lambda indices: slice(2, 5),
        lambda indices: ...,
    ],
)
def test_every_kind_of_index(mixture, index):
    model, reference, _ = mixture
    read_in_place(*mixture, range(20))
    want, kinds, found = reference.experts[3].up, set(), []

    def look(experts, indices):
        kinds.add(type(experts.up))
        found.append(torch.equal(experts.up[index(indices[0])], want[index(indices[0])]))

    model.experts[3].within = look
    assert same(model, reference, seeds=4)
    assert found == [True] * 4
    assert kinds == {IndexedParameter}


def test_a_child_that_is_forked_within_a_use(mixture):
    model, reference, _ = mixture
    read_in_place(*mixture, range(20))
    ended = []

    def fork(experts, indices):
        weight = experts.up
        if (child := os.fork()) == 0:
            os._exit(type(weight) is not nn.Parameter)
        ended.append(os.waitpid(child, 0)[1])

    model.experts[3].within = fork
    assert same(model, reference, seeds=2)
    assert ended == [0, 0]


def test_a_parameter_is_one_again_after_each_pass(mixture):
    model, reference, attached = mixture
    read_in_place(*mixture, range(20))
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    with pytest.raises(IndexError):
        model.experts[1](rows(4), torch.full((4, CHOSEN), EXPERTS), torch.ones(4, CHOSEN))
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    assert not any(vars(p) for p in model.parameters())
    detached = attached.detach()
    assert {type(p) for p in detached.parameters()} == {nn.Parameter}
    assert same(detached, reference)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tokens_of_architectures_are_the_same(name, monkeypatch):
    pytest.importorskip("transformers")
    model = of_transformers(name)
    model.set_experts_implementation("batched_mm")  # as generate() does on a GPU
    gathered = []
    taken = SplitRows.gathered
    monkeypatch.setattr(SplitRows, "gathered", lambda *of: gathered.append(of) or taken(*of))
    tokens = [torch.tensor([[token]]) for token in range(40)]
    with torch.no_grad():
        want = [model(token, use_cache=False).logits for token in tokens]
        weights = sum(p.nbytes for p in model.parameters())
        with page(model, int(0.7 * weights) // 1024):
            got = [model(token, use_cache=False).logits for token in tokens]
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    assert gathered


def test_they_are_read_on_the_device(mixture):
    model, reference, attached = mixture
    read_in_place(*mixture, range(80))
    assert attached.stats().in_place_bytes == 0
    blocks = [block for block in attached.store.blocks if ".up" in block.name]
    assert blocks
    before = [block.host_bytes.clone() for block in blocks]
    for block in blocks:
        block.host_bytes.fill_(0x7F)
    assert same(model, reference)
    for block, content in zip(blocks, before, strict=True):
        block.host_bytes.copy_(content)


def test_indices_that_lie_elsewhere_are_not_counted():
    use = Use("experts", frozenset())
    chosen = Chosen({use: 4}, {}, torch.device("cpu"))
    chosen.note(use, torch.tensor([1, 3]))
    chosen.note(use, torch.tensor([2, 2], device="meta"))
    chosen.collect()
    assert chosen.passes == 1


def test_pages_are_about_as_large_as_an_expert():
    with torch.device("meta"):
        model = nn.ModuleList(nn.Linear(1, 1) for _ in range(4))
        for layer in model:
            layer.up = nn.Parameter(torch.empty(128, 1536, 2048, dtype=torch.bfloat16))
        other = nn.ModuleList(nn.Linear(2048, 128 * 1536, dtype=torch.bfloat16) for _ in range(4))
    sizes = []
    for each in (model, other):
        blocks = collect_blocks(each)
        paged = sum(block.nbytes for block in blocks)
        sizes.append(chunk_size_for(paged, typical_block(blocks, needed_alone)))
    assert sizes == [8 * MIB, 16 * MIB]
