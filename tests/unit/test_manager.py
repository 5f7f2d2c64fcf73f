# SPDX-License-Identifier: Apache-2.0
"""The budget that pages and tensors share, on the emulated GPU with tensors of an imagined card."""

from __future__ import annotations

import copy
import gc
from contextlib import ExitStack

import pytest
import torch
from attach_models import PAGE, page, rows, stack
from torch import nn

from penstock.errors import OutOfMemory
from penstock.native.device import EMULATED, Device
from penstock.paging import attachment
from penstock.paging.manager import Manager
from penstock.units import KIB


class Card:
    """PyTorch's allocator on an imagined card: what it holds counts in the budget as it grows."""

    cuda = True

    def __init__(self):
        self.lives = self.has = self.trims = 0

    def count_in(self, budget):
        self.budget = budget
        budget.set_reclaim(self.empty_cache)

    def leave(self, budget):
        pass

    def allocate(self, nbytes):
        self.lives += nbytes
        if self.lives > self.has:
            self.budget.take(self.lives - self.has)
            self.has = self.lives

    def free_tensors(self, nbytes):
        self.lives -= nbytes

    def held(self):
        return self.has

    def live(self):
        return self.lives

    def taken(self, locked):
        return 0

    def empty_cache(self):
        self.trims += 1
        self.budget.put_back(self.has - self.lives)
        self.has = self.lives

    def synchronize(self):
        pass

    def pass_begins(self, who_has_what):
        pass

    def pass_ends(self):
        pass


class Needy(nn.Module):
    """A model whose tensors take memory while it runs: so many bytes for each row of its input."""

    def __init__(self, card, layers=8):
        super().__init__()
        self.first, self.rest = stack(layers // 2), stack(layers - layers // 2)
        self.card, self.per_row = card, 0

    def forward(self, x):
        x = self.first(x)
        need = self.per_row * len(x)
        self.card.allocate(need)
        try:
            return self.rest(x)
        finally:
            self.card.free_tensors(need)


@pytest.fixture
def card(monkeypatch):
    """One card, with the one manager that all attachments on it have."""
    made = Card()
    managers = []

    def manager_of(device, torch_device):
        if not managers:
            managers.append(Manager(device, torch_device))
            managers[0].torch = made
            made.budget = managers[0].budget
            managers[0].uncounted = lambda: 0
            managers[0].grain = PAGE
        return managers[0]

    monkeypatch.setattr(attachment, "manager_of", manager_of)
    with torch.no_grad():
        yield made


def pages_of(attached):
    return attached.stats().budget


def test_pages_get_what_tensors_leave_and_give_it_back(card):
    model = Needy(card).eval()
    reference = copy.deepcopy(model.first), copy.deepcopy(model.rest)
    with page(model, 120) as attached:
        for per_row in (0, 6 * KIB, 14 * KIB, 2 * KIB, 14 * KIB):
            model.per_row = per_row
            for seed in range(4):
                x = rows(seed=seed)
                assert torch.equal(model(x), reference[1](reference[0](x)))
                shares = attached.manager.budget.shares()
                assert shares.pagers + shares.others <= 120 * KIB
        need = 14 * KIB * len(rows())
        assert pages_of(attached) <= 120 * KIB - need
        assert pages_of(attached) > 120 * KIB - need - 4 * PAGE


def test_what_was_cached_before_the_first_pass_is_not_what_it_needs(card):
    model = Needy(card).eval()
    model.per_row = 2 * KIB
    small, apart = rows()[:1], iter([PAGE])  # made for small tensors, whatever is cached

    def begins(*_):
        for nbytes in apart:
            card.budget.take(nbytes)
            card.has += nbytes

    model.rest.register_forward_pre_hook(begins)
    with page(model, 120) as attached:
        card.allocate(80 * KIB)  # as a pass does that ends for want of memory
        card.free_tensors(80 * KIB)
        for _ in range(6):
            model(small)
        assert pages_of(attached) > 100 * KIB


def test_what_a_larger_input_needed_leaves_room_for_a_smaller_one_again(card):
    model = Needy(card).eval()
    model.per_row = 8 * KIB
    with page(model, 120) as attached:
        large, small = rows(), rows()[:1]
        for _ in range(3):
            model(large)
        narrow = pages_of(attached)
        for _ in range(3):
            model(small)
        assert pages_of(attached) > narrow
        trims = card.trims
        for _ in range(4):
            model(small)
        assert card.trims == trims  # nothing is given back in a steady pass


@pytest.mark.parametrize("order", ["SL", "LSS", "LLSSS"])
def test_room_that_the_next_pass_takes_back_is_left_alone(card, order):
    model = Needy(card).eval()
    reference = copy.deepcopy(model.first), copy.deepcopy(model.rest)
    model.per_row = 8 * KIB
    inputs = {"L": rows(), "S": rows()[:1]}
    with page(model, 120, chunk_size=PAGE) as attached:
        room, trims = [], []
        for kind in order * 8:
            x = inputs[kind]
            assert torch.equal(model(x), reference[1](reference[0](x)))
            room.append(pages_of(attached))
            trims.append(card.trims)
        last = len(order) * 2
        if order == "SL":
            assert len(set(room[-last:])) == 1  # neither grows for the other
            assert trims[-last] == trims[-1]
        else:  # a second small pass finds what the first has brought in
            assert room[-1] > room[-len(order)]
            assert trims[-1] - trims[-1 - len(order)] <= 2
        need = 8 * KIB * len(rows())
        assert min(room[-last:]) > 120 * KIB - need - 3 * PAGE  # nothing is kept back for good


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kept", [3 * KIB, 12 * KIB, 24 * KIB])
def test_models_in_turn_whose_results_are_kept_are_planned_once(card, kept, together):
    models = [Needy(card, layers).eval() for layers in (8, 7, 6)]
    references = copy.deepcopy([(model.first, model.rest) for model in models])
    for model in models:
        model.per_row = 4 * KIB
        model.rest[-1].register_forward_hook(lambda *_: card.allocate(kept))
    x, plans = rows(), []
    parts = [models] if together else models
    with ExitStack() as both:
        attached = [
            both.enter_context(page(part, 200 // len(parts), chunk_size=PAGE)) for part in parts
        ]
        for _ in range(12):
            for model, (first, rest) in zip(models, references, strict=True):
                assert torch.equal(model(x), rest(first(x)))
            plans.append(sum(each.stats().plans for each in attached))
            card.free_tensors(len(models) * kept)
        assert plans[-1] == plans[4]
        room = sum(map(pages_of, attached))
        assert room > 200 * KIB - 4 * KIB * len(x) - 3 * kept - 3 * len(parts) * PAGE


@pytest.mark.parametrize("kept_by_others", [0, 6 * KIB])
def test_a_workspace_of_the_first_pass_does_not_count_twice_ever_after(card, kept_by_others):
    model = Needy(card).eval()
    model.per_row = 4 * KIB
    x = rows()
    with page(model, 120, chunk_size=PAGE) as attached:
        for number in range(12):
            if number == 0:
                hook = model.rest[0].register_forward_hook(lambda *_: card.allocate(20 * KIB))
            if number == 1:  # from here on the result of the last pass lives in the next
                card.allocate(kept_by_others)
            model(x)
            if number == 0:
                hook.remove()
        need = 4 * KIB * len(x) + 20 * KIB + kept_by_others
        assert pages_of(attached) > 120 * KIB - need - 3 * PAGE
        plans, trims = attached.stats().plans, card.trims
        for _ in range(8):
            model(x)
        assert attached.stats().plans == plans  # nothing comes and goes in a steady pass
        assert card.trims == trims
        card.free_tensors(20 * KIB + kept_by_others)


def test_tensors_from_before_the_attachment_do_not_count_twice(card):
    model = Needy(card).eval()
    model.per_row = 4 * KIB
    card.lives = card.has = 60 * KIB  # the budget is told of them by the driver's figure
    with page(model, 120, chunk_size=PAGE) as attached:
        for _ in range(4):
            model(rows())
        assert pages_of(attached) > 120 * KIB - 4 * KIB * len(rows()) - 3 * PAGE


def test_a_model_that_fits_leaves_for_tensors_between_its_passes_and_within(card):
    model = Needy(card).eval()
    reference = copy.deepcopy(model.first), copy.deepcopy(model.rest)
    x = rows()
    with page(model, 300, chunk_size=PAGE) as attached:
        for _ in range(6):
            model(x)
        assert attached.stats().iteration_bytes_in == 0
        card.allocate(220 * KIB)  # a program's own, beside 130 of weights
        assert torch.equal(model(x), reference[1](reference[0](x)))
        card.free_tensors(220 * KIB)
        for _ in range(6):
            model(x)
        assert attached.stats().iteration_bytes_in == 0
        model.per_row = 55 * KIB  # more than such passes needed before
        assert torch.equal(model(x), reference[1](reference[0](x)))
        assert attached.stats().peak_device_bytes <= 300 * KIB


def test_a_cache_that_grows_does_not_cost_a_plan_a_pass(card):
    model = Needy(card).eval()
    reference = copy.deepcopy(model.first), copy.deepcopy(model.rest)
    x = rows()
    with page(model, 1040, chunk_size=PAGE) as attached:
        card.allocate(930 * KIB)
        for _ in range(4):
            model(x)
        plans = attached.stats().plans
        for _ in range(12):
            card.allocate(PAGE)
            assert torch.equal(model(x), reference[1](reference[0](x)))
            shares = attached.manager.budget.shares()
            assert shares.pagers + shares.others <= 1040 * KIB
        assert attached.stats().plans - plans <= 6
        card.free_tensors(930 * KIB + 12 * PAGE)


def test_what_does_not_fit_says_so_and_the_next_pass_runs(card):
    model = Needy(card).eval()
    reference = copy.deepcopy(model.first), copy.deepcopy(model.rest)
    with page(model, 120) as attached:
        model(rows())
        model.per_row = 130 * KIB
        with pytest.raises(OutOfMemory, match="KiB"):
            model(rows())
        card.lives = 0
        card.empty_cache()
        model.per_row = 0
        assert torch.equal(model(rows()), reference[1](reference[0](rows())))
        assert "gpu_memory of 120 KiB" in attached.manager.who_has_what()


def test_models_in_turn_have_room_by_their_size_and_one_that_goes_on_takes_it(card):
    first, second = stack(8), stack(8)
    references = copy.deepcopy((first, second))
    with page(first, 60) as one, page(second, 60) as two:
        for seed in range(6):
            assert torch.equal(first(rows(seed=seed)), references[0](rows(seed=seed)))
            assert torch.equal(second(rows(seed=seed)), references[1](rows(seed=seed)))
        assert abs(pages_of(one) - pages_of(two)) <= 2 * PAGE
        for seed in range(3):
            assert torch.equal(first(rows(seed=seed)), references[0](rows(seed=seed)))
        assert pages_of(one) > pages_of(two) + 4 * PAGE
        for seed in range(3):
            assert torch.equal(second(rows(seed=seed)), references[1](rows(seed=seed)))
        assert pages_of(two) > pages_of(one) + 4 * PAGE


def test_the_driver_has_room_before_a_pass_has_shown_what_it_takes():
    card, gib = Card(), 1 << 30
    taken = [3 * gib]
    card.taken = lambda locked: taken[0]
    with Device(EMULATED) as device:
        manager = Manager(device, torch.device("cpu"))
        manager.torch, card.budget = card, manager.budget
        manager.prepare(gib)
        assert manager.budget.shares().limit == gib - gib // 16
        taken[0] += 50 << 20  # kernels of the first pass
        manager.shown = True
        manager.refresh()
        assert manager.budget.shares().limit == gib - (50 << 20) - gib // 64
        manager.expect(seen=True)
        assert manager.budget.shares().limit == gib - (50 << 20) - gib // 256
        manager.prepare(gib)  # a model that has kernels of its own
        assert manager.budget.shares().limit == 2 * gib - (50 << 20) - (96 << 20)
        manager.leave(None, 2 * gib)


def test_pages_count_once_from_the_beginning():
    """What an attachment begins with is in use before its share is known."""

    class Pager:
        def stats(self):
            return {"device_bytes": 40 << 20}

    class Entering:
        pager, fixed = Pager(), 0

        def enter(self):
            limits.append(manager.budget.shares().limit)

    card, gib, limits = Card(), 1 << 30, []
    card.taken = lambda locked: 40 << 20 if manager.bytes else 0
    with Device(EMULATED) as device:
        manager = Manager(device, torch.device("cpu"))
        manager.torch, card.budget = card, manager.budget
        manager.prepare(gib)
        manager.enter(Entering(), 0)
        assert limits == [gib - gib // 16]
        manager.leave(None, gib)


class Cycle:
    """Tensors that nobody has any more, until a collection finds them."""

    def __init__(self, card, nbytes):
        self.itself, self.card, self.nbytes = self, card, nbytes
        card.allocate(nbytes)

    def __del__(self):
        self.card.free_tensors(self.nbytes)


def test_what_only_a_collection_can_free_is_freed_before_attach_refuses(card):
    model = Needy(card).eval()
    expected = model(rows())
    gc.collect()
    gc.disable()
    try:
        take, card.count_in = card.count_in, lambda budget: (take(budget), Cycle(card, 100 * KIB))
        with page(model, 120) as attached:
            assert torch.equal(model(rows()), expected)
            assert attached.manager.budget.shares().others == 0
    finally:
        gc.enable()


def test_an_error_gives_what_was_there_before_to_the_allocator(card):
    with page(Needy(card).eval(), 120) as attached:
        manager = attached.manager
        has, card.held = card.held, lambda: 40 * KIB
        manager.uncounted = lambda: 41 * KIB
        said = manager.who_has_what()
        card.held = has
        assert "allocator has 40.0 KiB, the driver 1.00 KiB" in said
