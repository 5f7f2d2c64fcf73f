# SPDX-License-Identifier: Apache-2.0
"""Memory that PyTorch caches in pieces, on the emulated GPU with an allocator that has some."""

from __future__ import annotations

import pytest
from training_tower import GRANULE, Tower, adamw, batches, learn, loss_of, page

from penstock.paging import manager
from penstock.paging.emulated_memory import EmulatedMemory

PIECES = 2 * GRANULE
STEPS = 8


class Pieces(EmulatedMemory):
    """What was freed by layers is too small for logits, which memory is made for beside it."""

    latest = None

    def __init__(self):
        super().__init__()
        self.cached = 0
        Pieces.latest = self

    def cache(self):
        self._budget.take(PIECES - self.cached)
        self.cached = PIECES

    def held(self):
        return super().held() + self.cached

    def live(self):
        return super().held()

    def empty_cache(self):
        super().empty_cache()
        if self._budget is not None:
            self._budget.put_back(self.cached)
        self.cached = 0


class Fragmenting(Tower):
    """Its layers leave pieces, or the head does; how many bytes of them lie there later."""

    def __init__(self, who):
        super().__init__(layers=5)
        self.seen = []
        if who == "layers":
            self.layers[-1].register_forward_hook(lambda *_: Pieces.latest.cache())
            self.head.register_forward_hook(lambda *_: self.note())
        else:
            self.head.register_forward_pre_hook(
                lambda _, args: args[0].register_hook(lambda _: self.note()) and None
            )
            self.head.register_forward_hook(lambda *_: Pieces.latest.cache())

    def note(self):
        self.seen.append(Pieces.latest.cached)


@pytest.fixture
def attached(monkeypatch):
    monkeypatch.setattr(manager, "EmulatedMemory", Pieces)

    def make(chunks, who="layers"):
        model = Fragmenting(who)
        optimizer = adamw(model)
        held = page(model, optimizer, chunks=chunks)
        for data in batches(STEPS, size=24):
            learn(optimizer, loss_of(model, data))
        return held, model.seen

    return make


def test_pieces_go_back_before_the_logits_where_pages_could_use_them(attached):
    held, seen = attached(chunks=70)
    with held:
        assert seen == [0] * STEPS


def test_pieces_stay_where_everything_fits(attached):
    held, seen = attached(chunks=400)
    with held:
        assert seen[-4:] == [PIECES] * 4


def test_pieces_that_forward_left_go_back_as_backward_begins(attached):
    held, seen = attached(chunks=70, who="head")
    with held:
        assert seen == [0] * STEPS
