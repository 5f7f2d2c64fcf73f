# SPDX-License-Identifier: Apache-2.0
"""What operators make within passes counts against the budget of an emulated GPU."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from attach_models import PAGE, WIDTH, page, rows, stack
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from penstock.errors import OutOfMemory
from penstock.paging import attach
from penstock.paging.modes import PassMode, leave_over
from penstock.units import KIB, MIB

pytestmark = pytest.mark.usefixtures("no_grad")

ROW = WIDTH * 4  # bytes


class Passing(PassMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Wide(nn.Module):
    """Keeps what each of its layers makes until it is done."""

    def __init__(self):
        super().__init__()
        self.layers = stack()

    def forward(self, x):
        made = [x]
        for layer in self.layers:
            made.append(torch.tanh(layer(made[-1])))
        return made[-1]


class Cached(nn.Module):
    """Adds its inputs to a cache, and looks at all of it."""

    def __init__(self):
        super().__init__()
        self.layers = stack()
        self.cache = None

    def forward(self, x):
        x = self.layers(x)
        self.cache = x if self.cache is None else torch.cat([self.cache, x])
        return self.cache.mean(0)


def others(attached):
    return attached.manager.held()


def pages(attached):
    return attached.manager.budget.shares().pagers


def llama():
    """A model that nobody here wrote, and one of its inputs of so many tokens."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=8,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tokens(count):
    return torch.randint(0, 96, (1, count), generator=torch.Generator().manual_seed(count))


def test_pages_leave_for_activations_and_the_bits_are_the_same():
    model = llama()
    resident = copy.deepcopy(model)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    with page(model, (weights + 400 * KIB) // KIB) as attached:
        room = []
        for count in (2, 2, 600, 2, 600, 600):
            want = resident(tokens(count), use_cache=False).logits
            assert torch.equal(model(tokens(count), use_cache=False).logits, want)
            room.append(attached.pager.stats()["budget"])
            shares = attached.manager.budget.shares()
            assert shares.pagers + shares.others <= attached.budget
        assert shares.others_peak > 400 * KIB
        assert min(room[1], room[3]) > max(room[2], room[4], room[5]) + 300 * KIB


def test_activations_beyond_the_budget_are_an_error_and_a_smaller_input_runs():
    model = llama()
    resident = copy.deepcopy(model)
    with page(model, 300) as attached:
        want = resident(tokens(8)).logits
        assert torch.equal(model(tokens(8)).logits, want)
        with pytest.raises(OutOfMemory) as refused:
            model(tokens(2000))
        error = refused.value
        assert error.needed_bytes > error.budget_bytes == attached.budget
        assert "gpu_memory of 300 KiB" in str(error)
        assert "pages of LlamaForCausalLM" in str(error)
        del refused, error
        gc.collect()
        assert others(attached) == 0
        assert torch.equal(model(tokens(8)).logits, want)


def test_a_use_without_room_says_who_has_it():
    model = Wide()
    with page(model, 40) as attached:
        held = [model(rows(1)) for _ in range(2)]
        attached.manager.torch.pass_begins(str)
        held.append(torch.empty(20 * KIB, dtype=torch.uint8))
        attached.manager.torch.pass_ends()
        with pytest.raises(OutOfMemory, match=r"gpu_memory of 40\.0 KiB.*pages of Wide"):
            model(rows(1))
        held.pop()
        assert torch.equal(model(rows(1)), held[0])


def test_outputs_count_until_they_are_deleted():
    model = Wide()
    with page(model, 120) as attached:
        assert others(attached) == 0
        x = rows(8)
        first, second = model(x), model(x)
        assert others(attached) == 2 * 8 * ROW
        row = first[0]  # a view
        del first
        assert others(attached) == 2 * 8 * ROW
        row.mul_(2)
        torch.ones(64)  # between passes nothing counts
        assert others(attached) == 2 * 8 * ROW
        del row
        assert others(attached) == 8 * ROW
    # Nothing is left to the budget of what outlives the attachment.
    assert attached.manager.budget.shares().others == 0
    assert torch.equal(model(x), second)


def test_what_operators_change_in_place_counts_once_and_what_they_resize_anew():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = stack(1)
            self.kept = torch.zeros(8, WIDTH)  # the program's: made between passes

        def forward(self, x, out):
            self.kept.add_(1)
            torch.add(self.layer(x), 1, out=out)  # grows
            out.relu_()
            return out.view(-1)

    model = Odd()
    with page(model, 120) as attached:
        out, x = torch.empty(0), rows(8)
        seen = model(x, out)
        assert others(attached) == 8 * ROW
        model(x, out)
        assert others(attached) == 8 * ROW
        assert seen.data_ptr() == out.data_ptr()
        attached.manager.torch.empty_cache()
        assert others(attached) == 8 * ROW
        out.untyped_storage().resize_(ROW)  # behind the operators' back
        attached.manager.torch.empty_cache()
        assert others(attached) == ROW
        del out, seen
        assert others(attached) == 0


def test_two_models_share_a_budget_with_what_both_make():
    first, second = Wide(), Wide()
    resident = copy.deepcopy((first, second))
    with page([first, second], 120) as attached:
        for seed in range(4):
            held = [model(rows(32, seed)) for model in (first, second)]
            want = [model(rows(32, seed)) for model in resident]
            assert all(map(torch.equal, held, want))
            assert others(attached) == 2 * 32 * ROW
        assert pages(attached) <= 120 * KIB - others(attached)
        with pytest.raises(OutOfMemory, match="gpu_memory of 120 KiB"):
            second(rows(1000))


def test_a_growing_cache_takes_the_pages_room():
    model = Cached()
    reference = copy.deepcopy(model)
    with page(model, 160) as attached:
        room = []
        for seed in range(20):
            assert torch.equal(model(rows(8, seed)), reference(rows(8, seed)))
            room.append(pages(attached))
            assert others(attached) == (seed + 1) * 8 * ROW
        assert room[4] > room[-1] > 0
        with pytest.raises(OutOfMemory, match="gpu_memory of 160 KiB"):
            model(rows(400))
        model.cache = None
        reference.cache = None
        gc.collect()
        assert torch.equal(model(rows(8)), reference(rows(8)))


def test_a_mode_of_the_program_stays_its_own():

    class Seen(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    class Enters(Wide):
        def forward(self, x):
            mode.__enter__()  # and leaves it after the pass
            return super().forward(x)

    mode, model = Seen(), Enters()
    with attach(
        model,
        device="emulated",
        gpu_memory=120 * KIB,
        emulated={"granularity": PAGE, "capacity": MIB},
    ) as attached:
        output = model(rows(8))
        assert _get_current_dispatch_mode() is mode
        mode.__exit__(None, None, None)
        assert others(attached) == 8 * ROW
        other = torch.ones(64) + 1
        assert others(attached) == output.nbytes
        assert other.sum() == 128
        seen = mode.count
        model.layers(rows(8))
        assert mode.count == seen
        assert _get_current_dispatch_mode() is None


def test_a_mode_that_is_over_is_not_left_within_inference_mode_that_began_after_it():
    """At whose end PyTorch would look for a mode that is there no more, in each operator."""
    mode, inner = Passing(), Passing()
    mode.__enter__()
    with torch.inference_mode():
        inner.__enter__()
        inner.leave()
        mode.leave()
        assert _get_current_dispatch_mode() is mode
    assert torch.zeros(2).tolist() == [0, 0]  # of no tensor that could tell
    leave_over()
    assert _get_current_dispatch_mode() is None


class Hoards(nn.Module):
    """Keeps what it makes in a cycle, as frames keep what they made with the error they raised."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))

    def forward(self, x, pieces=0):
        kept = []
        kept.append(kept)
        kept.extend(torch.zeros(8192) for _ in range(pieces))
        return self.layers(x)


def test_what_a_pass_that_ran_out_of_memory_made_is_gone_before_the_next():
    model = Hoards().eval()
    x = torch.randn(4, 64)
    gc.collect()
    gc.disable()
    try:
        emulated = {"granularity": 4096, "capacity": 64 << 20}
        with (
            torch.no_grad(),
            attach(model, gpu_memory=256 * 1024, device="emulated", emulated=emulated) as held,
        ):
            held.model(x)
            with pytest.raises(OutOfMemory):
                held.model(x, pieces=100)
            assert held.model(x, pieces=4).shape == x.shape
    finally:
        gc.enable()
