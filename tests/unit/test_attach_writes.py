# SPDX-License-Identifier: Apache-2.0
"""Weights of an attached model that are changed in place, replaced, saved and loaded."""

from __future__ import annotations

import pytest
import torch
from attach_models import WIDTH, page, rows, same_passes, stack, with_reference
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from penstock.errors import UsageError
from penstock.units import KIB

pytestmark = pytest.mark.usefixtures("no_grad")

BOTH = pytest.mark.parametrize("safety", ["normal", "strict"])
ALL = pytest.mark.parametrize("kib", [80, 1024])  # streamed, and resident


def same_state(model, reference):
    mine, theirs = model.state_dict(), reference.state_dict()
    return list(mine) == list(theirs) and all(torch.equal(mine[k], theirs[k]) for k in theirs)


def test_what_changed_between_passes_comes_in_once():
    model, reference = with_reference(stack(16))
    with page(model, 128) as attached:
        assert same_passes(model, reference, 6)
        before = attached.stats().bytes_in
        assert same_passes(model, reference, 2)
        steady = attached.stats().bytes_in - before
        assert steady > 0
        moved = []
        for _ in range(4):
            before = attached.stats().bytes_in
            for each in (model, reference):
                torch._foreach_mul_(list(each.parameters()), 1.001)
            assert same_passes(model, reference, 2)
            moved.append(attached.stats().bytes_in - before)
        # The first of two passes finds pages elsewhere, and what is there is not counted.
        assert max(moved) <= 1.25 * steady
    assert same_state(model, reference)


@BOTH
@ALL
def test_a_parameter_that_forward_changes(safety, kib):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = stack()
            self.count = nn.Parameter(torch.zeros(WIDTH, WIDTH))

        def forward(self, x):
            self.count.add_(1)
            return self.layers(x) + self.count[0]

    model, reference = with_reference(Counts())
    with page(model, kib, safety=safety):
        for _ in range(3):
            assert same_passes(model, reference, 2)
            assert same_state(model, reference)
    assert same_state(model, reference)


@BOTH
@ALL
def test_a_moving_average_that_forward_takes(safety, kib):
    class Follows(nn.Module):
        def __init__(self):
            super().__init__()
            self.online, self.target = stack(4), stack(4)

        def forward(self, x):
            pairs = zip(self.target.parameters(), self.online.parameters(), strict=True)
            for average, weight in pairs:
                average.mul_(0.9).add_(weight, alpha=0.2)
            return self.target(x) + self.online(x)

    model, reference = with_reference(Follows())
    with page(model, kib, safety=safety):
        for _ in range(3):
            assert same_passes(model, reference, 2)
            assert same_state(model, reference)
    assert same_state(model, reference)


@BOTH
@ALL
@pytest.mark.parametrize("how", ["in place", "by data", "data", "held"])
def test_weights_changed_between_passes(safety, kib, how):
    model, reference = with_reference(stack())
    with page(model, kib, safety=safety):
        held = list(model.parameters())
        for step in range(3):
            assert same_passes(model, reference, 3)
            for number, theirs in enumerate(reference.parameters()):
                theirs.mul_(1.5).add_(step)
                mine = held[number] if how == "held" else list(model.parameters())[number]
                if how == "by data":
                    mine.data.mul_(1.5).add_(step)
                elif how == "data":
                    mine.data = mine.data * 1.5 + step
                else:
                    mine.mul_(1.5).add_(step)
        assert same_state(model, reference)
        assert same_passes(model, reference, 2)
    assert same_state(model, reference)


@ALL
def test_weights_changed_before_a_buffer_of_the_same_page_is_read(kib):
    """As moving averages do: all parameters first, then the buffers, which passes write."""
    layers = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)] * 3
    model, reference = with_reference(nn.Sequential(*layers))
    with page(model, kib, chunk_size="16KiB"):
        for step in range(3):
            assert same_passes(model, reference, 2)
            for each in (model, reference):
                for parameter in each.parameters():
                    parameter.mul_(1.5).add_(step)
                for buffer in each.buffers():
                    buffer.add_(1)
        assert same_passes(model, reference, 2)
    assert same_state(model, reference)


class Bare(nn.Module):
    """Buffers that others read, as functions' arguments."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(WIDTH, WIDTH) / 8)
        self.register_buffer("bias", torch.randn(WIDTH))

    def forward(self, x):
        return x


class Buffers(nn.Sequential):
    """Reads more buffers than are brought in at one time."""

    def __init__(self):
        super().__init__(*(Bare() for _ in range(8)))

    def forward(self, x):
        for each in self:
            x = torch.tanh(F.linear(x, each.weight, each.bias))
        return x


class Changed(Buffers):
    """Collects them all before it changes them."""

    def forward(self, x):
        for weight, bias in [(each.weight, each.bias) for each in self]:
            weight.mul_(0.9)
            bias.add_(1)
        return super().forward(x)


@BOTH
def test_buffers_that_a_pass_collects_and_then_changes(safety):
    model, reference = with_reference(Changed())
    with page(model, safety=safety):
        assert same_passes(model, reference, 4)
        assert same_state(model, reference)


@BOTH
def test_buffers_changed_between_passes_that_gave_way_in_one(safety):
    model, reference = with_reference(Buffers())
    with page(model, safety=safety):
        for step in range(3):
            assert same_passes(model, reference, 2)
            for each in (model, reference):
                for buffer in each.buffers():
                    buffer.mul_(0.9).add_(step)
            assert same_state(model, reference)


def test_a_change_that_nobody_was_told_of_is_an_error():
    model, reference = with_reference(stack())
    kept = list(model.parameters())
    with page(model) as attached:
        assert same_passes(model, reference, 4)
        block = next(b for b, slot in attached.store.slots() if slot.tensor is kept[0])
        attached.pager.fetch(block.address, block.nbytes)
        kept[0].add_(1)
        with pytest.raises(UsageError, match="kept from before"):
            model(rows())


def test_an_embedding_that_renormalises():
    torch.manual_seed(0)
    table = nn.Embedding(200, WIDTH, max_norm=1.0)
    model, reference = with_reference(nn.Sequential(table, *stack()))
    with page(model):
        for n in range(6):
            ids = torch.randint(0, 200, (4,), generator=torch.Generator().manual_seed(n))
            assert torch.equal(model(ids), reference(ids))
        assert same_state(model, reference)


@BOTH
@ALL
def test_data_that_is_given_to_weights_in_a_pass(safety, kib):
    model, reference = with_reference(stack())

    def fade(layer, args):
        layer.weight.data = layer.weight.data * 0.9

    for layer in (model[5], reference[5]):
        layer.register_forward_pre_hook(fade)
    with page(model, kib, safety=safety):
        assert same_passes(model, reference, 6)
        assert same_state(model, reference)
    assert same_passes(model, reference)


@ALL
def test_a_replaced_parameter_is_the_users(kib):
    model, reference = with_reference(stack())
    new = torch.randn(WIDTH, WIDTH)
    with page(model, kib):
        assert same_passes(model, reference, 3)
        mine = model[3].weight = nn.Parameter(new.clone())
        reference[3].weight = nn.Parameter(new.clone())
        assert same_passes(model, reference, 3)
        assert same_state(model, reference)
    assert model[3].weight is mine
    assert same_state(model, reference)


@BOTH
@ALL
def test_a_weight_that_another_module_takes(safety, kib):
    model, reference = with_reference(stack(12))
    with page(model, kib, safety=safety):
        assert same_passes(model, reference, 3)
        for each in (model, reference):
            each[1].weight = each[9].weight
        assert same_passes(model, reference, 3)
        for each in (model, reference):
            each[9].weight.mul_(2)
        assert same_passes(model, reference, 3)
        assert same_state(model, reference)
    assert model[1].weight is model[9].weight
    assert same_passes(model, reference)


class Adds(nn.Module):
    """A parametrization, as adapters for any weight are."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH, WIDTH), 0.01))

    def forward(self, weight):
        return weight + self.weight


class Takes(nn.Module):
    """A layer in the place of another, whose weight it has."""

    def __init__(self, layer):
        super().__init__()
        self.weight = layer.weight

    def forward(self, x):
        return F.linear(x, self.weight)


@BOTH
@ALL
def test_a_weight_that_a_new_module_takes(safety, kib):
    model, reference = with_reference(stack(12))
    with page(model, kib, safety=safety):
        assert same_passes(model, reference, 3)
        for each in (model, reference):
            each[1] = Takes(each[1])
            parametrize.register_parametrization(each[9], "weight", Adds())
        for _ in range(3):
            assert same_passes(model, reference, 3)
            assert torch.equal(model[1].weight * 2, reference[1].weight * 2)
            assert torch.equal(model[9].weight, reference[9].weight)
            for each in (model, reference):
                each[1].weight.mul_(1.5)
                each[9].parametrizations.weight.original.mul_(1.5)
        for each in (model, reference):
            parametrize.remove_parametrizations(each[9], "weight")
        assert same_passes(model, reference, 3)
        assert same_state(model, reference)
    assert same_state(model, reference)
    assert same_passes(model, reference)


@ALL
def test_modules_added_and_removed(kib):
    model, reference = with_reference(stack())
    with page(model, kib):
        assert same_passes(model, reference, 2)
        model.append(nn.Linear(WIDTH, WIDTH))
        reference.append(nn.Linear(WIDTH, WIDTH)).load_state_dict(
            {**reference.state_dict(), **{f"8.{k}": v for k, v in model[8].state_dict().items()}}
        )
        assert same_passes(model, reference, 3)
        del model[2], reference[2]
        assert same_passes(model, reference, 3)
        assert same_state(model, reference)
    assert same_state(model, reference)


@BOTH
@ALL
def test_state_dicts_of_parts(safety, kib):
    model, reference = with_reference(nn.ModuleDict({"a": stack(4), "b": stack(4)}))
    model, reference = nn.Sequential(model["a"], model["b"]), nn.Sequential(*reference.values())
    with page(model, kib, safety=safety):
        for _ in range(2):
            assert same_passes(model, reference, 3)
            assert same_state(model[0], reference[0])
            assert same_state(model[1][3], reference[1][3])
            assert same_state(nn.ModuleDict({"x": model}), nn.ModuleDict({"x": reference}))
            kept = model.state_dict(keep_vars=True)
            assert all(torch.equal(kept[k], v) for k, v in reference.state_dict().items())


@BOTH
@ALL
def test_loading_the_whole_and_a_part(safety, kib):
    model, reference = with_reference(stack())
    other = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    part = {"weight": torch.ones(WIDTH, WIDTH), "bias": torch.ones(WIDTH)}
    with page(model, kib, safety=safety):
        assert same_passes(model, reference, 3)
        for each in (model, reference):
            each.load_state_dict(other)
            each[5].load_state_dict(part)
        assert same_state(model, reference)
        assert same_passes(model, reference, 3)
    assert same_state(model, reference)


def test_saving_a_state_dict_moves_nothing_in():
    model, reference = with_reference(stack())
    with page(model) as attached:
        assert same_passes(model, reference, 4)
        before = attached.pager.stats()["bytes_in"]
        model.state_dict()
        assert attached.pager.stats()["bytes_in"] == before
        steady = attached.stats().iteration_bytes_in
        model(rows())
        model(rows())
        assert attached.stats().iteration_bytes_in == steady


def test_peft_merges_and_unmerges():
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    adapters = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    model, reference = with_reference(model)
    ids = torch.randint(1, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    size = sum(parameter.nbytes for parameter in model.parameters())
    with page(model, size // 2 // KIB):
        for change in (None, "merge_adapter", None, "unmerge_adapter"):
            for each in (model, reference):
                if change is not None:
                    getattr(each, change)()
            for _ in range(2):
                assert torch.equal(model(input_ids=ids).logits, reference(input_ids=ids).logits)
    assert same_state(model, reference)


def test_functional_call_with_other_weights():
    model, reference = with_reference(stack())
    call = torch.func.functional_call
    with page(model):
        assert same_passes(model, reference, 3)
        own = dict(model.named_parameters())
        assert torch.equal(call(model, own, (rows(),)), reference(rows()))
        other = {name: 2 * tensor for name, tensor in reference.named_parameters()}
        assert torch.equal(call(model, other, (rows(),)), call(reference, other, (rows(),)))
        assert same_passes(model, reference, 2)
        assert torch.equal(F.linear(rows(), model[0].weight), F.linear(rows(), reference[0].weight))


def test_changes_of_what_no_module_uses_as_a_whole():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(layer.weight for layer in stack())
            self.register_buffer("calls", torch.zeros(WIDTH))

        def part(self, x):
            self.calls.add_(1)
            for weight in self.weights[:4]:
                x = torch.tanh(F.linear(x, weight))
            return x

        def forward(self, x):
            return F.linear(self.part(x), self.weights[7]) + self.calls

    model, reference = with_reference(Parts())
    with page(model):
        for _ in range(3):
            assert same_passes(model, reference, 2)
            for each in (model, reference):
                each.weights[2].mul_(2)
                each.part(rows())
        assert same_state(model, reference)


class Ring(nn.Module):
    """Keeps what it gave the last times; `kept` are views of that, made in reset()."""

    def __init__(self, kept):
        super().__init__()
        self.layers = stack(4)
        self.register_buffer("past", torch.zeros(4, 4, WIDTH))
        self.by = kept

    def reset(self):
        self.kept = [self.past[i] for i in range(4)]

    def forward(self, x, i):
        x = self.layers(x)
        if self.by == "inside":
            self.reset()
        if self.by in ("written", "inside"):
            self.kept[i].copy_(x)
        if self.by == "given as out":
            torch.add(x, 1.0, out=self.kept[i])
        if self.by == "read":
            self.past[i] = x
            return torch.stack(self.kept).sum(0)
        if self.by == "only read":
            return x + self.kept[i]
        return x + self.past.sum(0)


@pytest.mark.parametrize("by", ["written", "given as out", "read"])
def test_a_view_made_between_passes_is_not_silently_another_memory(by):
    model, reference = with_reference(Ring(by))
    with page(model):
        model.reset()
        with pytest.raises(UsageError, match="a view of past that was made outside it"):
            model(rows(), 0)
        model.by = reference.by = "inside"
        reference.past.copy_(model.past)
        for n in range(4):
            assert torch.equal(model(rows(seed=n), n), reference(rows(seed=n), n))


@pytest.mark.parametrize("by", ["inside", "only read"])
def test_a_view_made_between_passes_of_what_stays_the_same_is_right(by):
    model, reference = with_reference(Ring(by))
    with page(model):
        model.past.normal_()
        reference.past.copy_(model.past)
        model.reset(), reference.reset()
        for n in range(4):
            assert torch.equal(model(rows(seed=n), n), reference(rows(seed=n), n))


def test_a_changed_buffer_is_asked_for_and_read_again_within_a_watched_pass():
    class Looks(Ring):
        def forward(self, x, i):
            y = super().forward(x, i)
            list(self.buffers())
            return y + self.past.sum(0)

    model, reference = with_reference(Looks("inside"))
    with page(model, safety="strict"):
        for n in range(4):
            assert torch.equal(model(rows(seed=n), n), reference(rows(seed=n), n))
            assert torch.equal(model.past, reference.past)
