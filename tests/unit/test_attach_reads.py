# SPDX-License-Identifier: Apache-2.0
"""Parameters of an attached model that are read where no use of their module is running."""

from __future__ import annotations

import pytest
import torch
from attach_models import (
    WIDTH,
    Borrower,
    Experts,
    Mixers,
    page,
    rows,
    same_passes,
    stack,
    with_reference,
)
from torch import nn
from torch.nn import functional as F

from penstock.units import KIB

pytestmark = pytest.mark.usefixtures("no_grad")

BOTH = pytest.mark.parametrize("safety", ["normal", "strict"])


@BOTH
def test_another_layers_weight_each_pass(safety):
    model, reference = with_reference(Borrower())
    with page(model, safety=safety) as attached:
        for n in range(12):
            x, which = rows(seed=n), 3 * n % 8
            assert torch.equal(model(x, which), reference(x, which))
        assert attached.stats().peak_device_bytes <= 80 * KIB


@BOTH
def test_a_branch_that_comes_late(safety):
    model, reference = with_reference(Borrower())
    with page(model, safety=safety):
        assert same_passes(model, reference, 6, borrow=False)
        assert same_passes(model, reference, 6, which=7)


@BOTH
def test_experts_as_functions(safety):
    model, reference = with_reference(Experts())
    with page(model, 64, safety=safety):
        for n in range(12):
            x = rows(1 + n % 3, seed=n)
            assert torch.equal(model(x), reference(x))


@BOTH
def test_called_in_one_mode_and_read_in_the_other(safety):
    model, reference = with_reference(Mixers())
    with page(model, 60, safety=safety):
        for decode in (False, False, True, True, False, True):
            assert same_passes(model, reference, 2, decode=decode)


def test_hf_mamba():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        vocab_size=96, hidden_size=64, num_hidden_layers=3, state_size=8, bos_token_id=0,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model, reference = with_reference(transformers.MambaForCausalLM(config))
    ids = torch.randint(1, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    size = sum(parameter.nbytes for parameter in model.parameters())
    with page(model, size // KIB):  # most of it for what its scan makes
        for _ in range(2):
            options = {"max_new_tokens": 6, "do_sample": False}
            assert torch.equal(model.generate(ids, **options), reference.generate(ids, **options))


@BOTH
def test_all_weights_in_one_forward_need_not_fit(safety):
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(layer.weight for layer in stack())

        def forward(self, x, first=False):
            weights = list(self.weights) if first else self.weights
            for weight in weights:
                x = torch.tanh(F.linear(x, weight))
            return x

    model, reference = with_reference(Lists())
    with page(model, 40, safety=safety) as attached:
        for first in (False, True, False, True):
            assert same_passes(model, reference, 3, first=first)
        assert attached.stats().bytes_in > 0
        assert attached.stats().peak_device_bytes <= 40 * KIB
    assert same_passes(model, reference)


@BOTH
def test_what_is_read_when_tensors_have_taken_room_since(safety):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            heights = (64, 64, 16, 208)
            self.weights = nn.ParameterList(rows(height, height) for height in heights)

        def forward(self, x):
            return torch.cat([F.linear(x, weight) for weight in self.weights], 1)

    model, reference = with_reference(Heads())
    with page(model, 52, safety=safety) as attached:  # the last, before anything is computed
        for count in (4, 4, 4, 16, 4, 16):
            assert torch.equal(model(rows(count)), reference(rows(count)))
        assert attached.stats().peak_device_bytes <= 52 * KIB


@BOTH
def test_weights_kept_in_a_list_of_the_models(safety):
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(stack())
            self.kept = [layer.weight for layer in self.layers]

        def forward(self, x, which=None):
            for layer in self.layers:
                x = torch.relu(layer(x))
            return x if which is None else F.linear(x, self.kept[which])

    model, reference = with_reference(Hidden())
    reference.kept = [layer.weight for layer in reference.layers]
    with page(model, safety=safety):
        assert same_passes(model, reference, 4)
        for n in range(8):  # the mode is new, and then the search goes on
            x = rows(seed=n)
            assert torch.equal(model(x, which=n), reference(x, which=n))


class Memoising(nn.Module):
    """Keeps views of its layers' weights in the first pass, and uses these from then on."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(stack(12))
        self.kept = []

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        if not self.kept:
            self.kept = [layer.weight.t() for layer in self.layers]
        for kept in self.kept:
            x = torch.relu(x @ kept)
        return x


@BOTH
def test_views_that_the_first_pass_keeps(safety):
    model, reference = with_reference(Memoising())
    with page(model, safety=safety):
        assert same_passes(model, reference, 5)
    assert same_passes(model, reference)
    model.layers[3].weight.mul_(2)
    reference.layers[3].weight.mul_(2)
    assert same_passes(model, reference)


@BOTH
def test_read_outside_every_forward(safety):
    model, reference = with_reference(stack())
    with page(model, safety=safety):
        for _ in range(3):
            assert same_passes(model, reference, 2)
            for mine, theirs in zip(model, reference, strict=True):
                assert torch.equal(mine.weight, theirs.weight)
                assert mine.weight.norm() == theirs.weight.norm()
            x = rows()
            assert torch.equal(F.linear(x, model[5].weight), F.linear(x, reference[5].weight))
            assert torch.equal(
                nn.utils.parameters_to_vector(model.parameters()),
                nn.utils.parameters_to_vector(reference.parameters()),
            )


def test_held_over_passes():
    model, reference = with_reference(stack())
    with page(model):
        kept = list(model.parameters())
        views = [parameter.detach()[:3] for parameter in kept]
        for _ in range(4):
            assert same_passes(model, reference, 2)
            for parameter, view, want in zip(kept, views, reference.parameters(), strict=True):
                assert torch.equal(parameter, want)
                assert torch.equal(view, want[:3])


def test_held_over_passes_where_somebody_else_did_before():
    model, reference = with_reference(stack())
    before = list(model.parameters())
    with page(model):
        assert same_passes(model, reference)
        del before  # as many hold each weight then as when it was attached
        kept = list(model.parameters())
        for _ in range(2):
            assert same_passes(model, reference, 2)
            assert all(map(torch.equal, kept, reference.parameters()))


def test_what_is_read_costs_no_device_memory_and_no_plan():
    model, reference = with_reference(stack())
    with page(model) as attached:
        assert same_passes(model, reference, 4)
        before = attached.pager.stats()
        for parameter in model.parameters():
            parameter.sum()
        assert attached.pager.stats()["bytes_in"] == before["bytes_in"]
        assert same_passes(model, reference, 4)
        after = attached.pager.stats()
        assert after["mismatches"] == before["mismatches"]
        assert after["planned_bytes_in"] == before["planned_bytes_in"]


def test_steady_passes_with_reads_follow_a_plan():
    model, reference = with_reference(Borrower())
    with page(model, 104) as attached:
        assert same_passes(model, reference, 5, which=3)
        before = attached.pager.stats()
        assert same_passes(model, reference, 3, which=3)
        after = attached.pager.stats()
        assert after["mismatches"] == before["mismatches"]
        assert after["demanded_pages"] == before["demanded_pages"]


def test_a_pass_may_return_its_weights():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = stack()

        def forward(self, x):
            return self.layers(x), self.layers[0].weight, self.layers[7].weight[:3].t()

    model, reference = with_reference(Returns())
    with page(model):
        got = [model(rows(seed=n)) for n in range(4)]
        for n, outputs in enumerate(got):
            for mine, theirs in zip(outputs, reference(rows(seed=n)), strict=True):
                assert torch.equal(mine, theirs)


def test_parts_called_alone():
    class Coder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = stack(4), stack(4)

        def decode(self, x):
            return self.decoder(x)

        def forward(self, x):
            return self.decode(self.encoder(x))

    model, reference = with_reference(Coder())
    with page(model):
        for n in range(3):
            x = rows(seed=n)
            assert torch.equal(model.decode(x), reference.decode(x))
            assert torch.equal(model.encoder[2](x), reference.encoder[2](x))
            assert torch.equal(model(x), reference(x))


class Rotary(nn.Module):
    """Hands a buffer to its layers, as vision transformers do with rotary embeddings."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Module()
        self.positions.register_buffer("table", torch.randn(WIDTH, WIDTH))
        self.layers = nn.ModuleList(Rotated() for _ in range(4))

    def features(self, x):
        table = self.positions.table
        for layer in self.layers:
            x = layer(x, table)
        return x + table[:1]

    def forward(self, x):
        return self.features(x)


class Rotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = stack(2)
        self.kept = []

    def forward(self, x, table=None, hidden=False):
        for each in self.kept if hidden else [] if table is None else [table]:
            x = x @ each
        return self.down(torch.tanh(self.up(x)))


@BOTH
@pytest.mark.parametrize("whole", [0, 3])
def test_parts_called_alone_with_a_weight_that_is_none_of_theirs(safety, whole):
    model, reference = with_reference(Rotary())
    with page(model, 60, safety=safety):
        assert same_passes(model, reference, whole)
        assert same_passes(model.features, reference.features, 6)
        assert same_passes(model, reference, 3)


@BOTH
def test_parts_called_alone_in_a_new_way(safety):
    """As of whole passes, the first ones of each kind are watched."""
    model, reference = with_reference(Rotary())
    mine, theirs = model.layers[1], reference.layers[1]
    mine.kept, theirs.kept = [model.positions.table], [reference.positions.table]
    with page(model, 60, safety=safety):
        assert same_passes(mine, theirs, 4)
        assert same_passes(mine, theirs, 4, hidden=True)


def test_a_root_that_calls_itself():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = nn.Parameter(torch.randn(WIDTH, WIDTH))
            self.layers = stack(4)

        def forward(self, x, depth=2):
            x = self.layers(x)
            return F.linear(self(x, depth - 1) if depth else x, self.own)

    model, reference = with_reference(Again())
    with page(model, 60):
        assert same_passes(model, reference, 5)


def test_weights_cast_by_autocast_are_not_kept():
    model, reference = with_reference(stack())
    # Within a pass autocast keeps what it has cast: half of the weights' size.
    with page(model, 112), torch.autocast("cpu", torch.bfloat16):
        assert same_passes(model, reference, 4)


def test_a_detach_looks_at_no_tensor_of_others(monkeypatch):
    """Others' storages may be gone, as those of a compiler's graphs; asking for these raises."""
    looked = []
    monkeypatch.setattr("penstock.paging.store.gc.get_objects", lambda: looked.append(None) or [])
    model, reference = with_reference(stack(12))
    with page(model):
        assert same_passes(model, reference)
    assert not looked


def test_views_outlive_a_storage_of_anothers_that_is_gone():
    gone = torch.ones(4)
    torch._C._set_throw_on_mutable_data_ptr(gone)
    model, reference = with_reference(stack(12))
    with page(model):
        kept = model[0].weight.t()
        assert same_passes(model, reference)
    assert torch.equal(kept, reference[0].weight.t())
    assert gone.shape == (4,)
