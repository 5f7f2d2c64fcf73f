# SPDX-License-Identifier: Apache-2.0
"""How a CUDA budget is shared with PyTorch's allocator, by the figures of an imagined device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from penstock.paging import segments, torch_limit  # noqa: E402
from penstock.paging.room import MARGIN, Room  # noqa: E402
from penstock.units import GIB  # noqa: E402


class Card:
    """A device with 140 GiB, its caching allocator, and kernels' modules."""

    def __init__(self, monkeypatch):
        self.reserved = self.live = self.peak = self.peak_reserved = 0
        self.modules = self.blocks = 0
        self.fraction = 1.0
        for name, function in {
            "synchronize": lambda *_: None,
            "empty_cache": self.empty_cache,
            "memory_reserved": lambda *_: self.reserved,
            "max_memory_allocated": lambda *_: self.peak,
            "max_memory_reserved": lambda *_: max(self.reserved, self.peak_reserved),
            "reset_peak_memory_stats": self.reset_peak,
            "set_per_process_memory_fraction": self.set_fraction,
            "get_per_process_memory_fraction": lambda *_: self.fraction,
        }.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch_limit, "_devices", {})
        self.said = []  # to torch's own allocator
        for name in ("expand", "restore"):
            monkeypatch.setattr(segments, name, lambda name=name: self.said.append(name))

    def memory(self):
        return 140 * GIB - self.reserved - self.modules - self.blocks, 140 * GIB

    def empty_cache(self):
        self.peak_reserved = max(self.reserved, self.peak_reserved)
        self.reserved = self.live

    def reset_peak(self, *_):
        self.peak = self.live
        self.peak_reserved = self.reserved

    def set_fraction(self, fraction, *_):
        self.fraction = fraction


def test_blocks_get_what_the_peak_leaves(monkeypatch):
    card = Card(monkeypatch)
    room = Room(card, torch.device("cuda", 0), 9 * GIB, slack=0.02)
    room.forget_peak()
    card.blocks, card.modules = GIB, GIB // 10
    card.live, card.peak, card.reserved = 0, 6 * GIB, int(6.3 * GIB)
    room.trim()
    left = room.for_blocks(GIB)
    assert left == pytest.approx(9 * GIB - 6.3 * GIB * 1.02 - GIB / 10 - MARGIN, abs=16)
    room.limit_torch(left, GIB)
    # The peak fits beside the blocks again, with 2 % to spare, and the driver beside both.
    limit = card.fraction * 140 * GIB
    assert limit >= 6.3 * GIB * 1.02
    assert limit + left + card.modules <= 9 * GIB


def test_a_cache_that_grew_far_beyond_the_peak_is_trimmed(monkeypatch):
    card = Card(monkeypatch)
    room = Room(card, torch.device("cuda", 0), 9 * GIB)
    card.blocks = GIB
    card.live, card.peak, card.reserved = GIB // 4, 6 * GIB, 8 * GIB
    assert room.for_blocks(GIB) == GIB - MARGIN
    room.trim()
    assert card.reserved == GIB // 4
    # What the peak needs is kept for it, though the cache is empty now.
    assert room.for_blocks(GIB) == pytest.approx((9 - 6.6) * GIB - MARGIN, abs=16)
    card.reserved = int(6.5 * GIB)
    room.trim()
    assert room.for_blocks(GIB) == pytest.approx((9 - 6.6) * GIB - MARGIN, abs=16)


def test_a_model_on_the_device_leaves_no_peak_behind(monkeypatch):
    card = Card(monkeypatch)
    card.live = card.peak = card.reserved = 20 * GIB
    room = Room(card, torch.device("cuda", 0), 9 * GIB)
    card.live = 0  # it has moved to the host
    room.forget_peak()
    assert (card.reserved, card.peak) == (0, 0)
    room.trim()
    assert room.for_blocks(0) == 9 * GIB - MARGIN


def test_torchs_allocator_is_set_back_once(monkeypatch):
    """detach() may come twice; another model may still be there."""
    card = Card(monkeypatch)
    room = Room(card, torch.device("cuda", 0), 9 * GIB)
    room.limit_torch(GIB, GIB)
    assert card.said == ["expand"]
    assert card.fraction < 1.0
    room.free_torch()
    room.free_torch()
    assert card.said == ["expand", "restore"]
    assert card.fraction == 1.0
    Room(card, torch.device("cpu"), 9 * GIB).free_torch()
    assert len(card.said) == 2


def test_the_users_own_limit_is_kept_and_comes_back(monkeypatch):
    card = Card(monkeypatch)
    card.fraction = 0.05
    room = Room(card, torch.device("cuda", 0), 9 * GIB)
    room.limit_torch(8 * GIB, GIB)
    assert card.fraction == pytest.approx(1 / 140)
    room.limit_torch(GIB, GIB)
    assert card.fraction == 0.05
    room.free_torch()
    assert card.fraction == 0.05


def test_a_limit_that_the_user_sets_meanwhile_stays(monkeypatch):
    card = Card(monkeypatch)
    room = Room(card, torch.device("cuda", 0), 9 * GIB)
    room.limit_torch(GIB, GIB)
    card.fraction = 0.5
    room.free_torch()
    assert card.fraction == 0.5


def test_two_attachments_have_one_limit_and_count_each_others_blocks(monkeypatch):
    card = Card(monkeypatch)
    first = Room(card, torch.device("cuda", 0), 4 * GIB)
    first.held = lambda: 3 * GIB
    card.blocks = 3 * GIB
    first.limit_torch(3 * GIB, 3 * GIB)
    second = Room(card, torch.device("cuda", 0), 6 * GIB)
    second.held = lambda: 2 * GIB
    card.blocks = 5 * GIB
    second.limit_torch(4 * GIB, 2 * GIB)
    assert card.fraction == pytest.approx(3 / 140)  # 1 that the first leaves, and 2
    card.live = card.reserved = 2 * GIB
    # Two GiB beside the blocks: one is what the other leaves.
    assert first.used() == 5 * GIB
    assert first.for_blocks(3 * GIB) == 4 * GIB - MARGIN
    assert second.for_blocks(2 * GIB) == 5 * GIB - MARGIN
    card.blocks = 2 * GIB
    first.free_torch()
    assert second.used() == 4 * GIB
    assert second.for_blocks(2 * GIB) == 4 * GIB - MARGIN
    second.limit_torch(4 * GIB, 2 * GIB)
    assert card.fraction == pytest.approx(2 / 140)
    second.free_torch()
    assert card.fraction == 1.0
