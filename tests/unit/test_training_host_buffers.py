# SPDX-License-Identifier: Apache-2.0
"""Host memory for activations: pieces never overlap, and the same steps need no more."""

from __future__ import annotations

import random

import pytest

from penstock.errors import OutOfMemory
from penstock.paging.training.host_buffers import LEAST_SLAB, HostBuffers
from penstock.units import KIB, MIB


def make(check_host=lambda nbytes: None, budget=64 * MIB):
    return HostBuffers(pinned=False, budget=budget, check_host=check_host)


@pytest.mark.parametrize("seed", range(3))
def test_pieces_never_overlap(seed):
    chance = random.Random(seed)
    buffers, held = make(), []
    for number in range(600):
        if held and chance.random() < 0.5:
            buffer, mark = held.pop(chance.randrange(len(held)))
            assert bool((buffer.content == mark).all())
            buffers.give_back(buffer)
        else:
            buffer = buffers.take(chance.randrange(1, 300 * KIB))
            buffer.content.fill_(number % 251)
            held.append((buffer, number % 251))
    for buffer, mark in held:
        assert bool((buffer.content == mark).all())


def test_equal_steps_need_no_more_memory():
    asked = []
    buffers = make(asked.append)
    sizes = [700 * KIB, 5 * MIB, 3 * MIB + 1, 900 * KIB, 20 * MIB]
    for _ in range(5):
        for buffer in [buffers.take(size) for size in sizes]:
            buffers.give_back(buffer)
    assert buffers.nbytes == sum(asked)
    assert len(asked) <= 3
    # What was cut is whole again.
    buffers.give_back(buffers.take(LEAST_SLAB))
    assert buffers.nbytes == sum(asked)


def test_a_host_that_is_full_says_so():
    def refuse(nbytes):
        raise OutOfMemory("full")

    with pytest.raises(OutOfMemory, match="full"):
        make(refuse).take(MIB)
