# SPDX-License-Identifier: Apache-2.0
"""A loop on a plain model and on a paged one, which must come to the same, bit for bit.

A loop is a function of (model, optimizer, index of the step); what it returns, the weights and the
optimizer's state must be equal.
"""

from __future__ import annotations

import functools

from training_tower import Tower, adamw, batches, both_ways, drawn, loss_of

from penstock.paging.training.loop import PLAIN_STEPS

DATA = batches(16)
CHUNKS = 3  # for page(): with AdamW pages move in every step, in backward's updates too
make = functools.partial(Tower, layers=2)
STEPS = PLAIN_STEPS + 4  # so that some would be updated in backward


def backward(model, n, share=1):
    loss = loss_of(model, DATA[n % len(DATA)]) / share
    loss.backward()
    return loss.item()


def plain_step(model, optimizer, n, before_step=lambda model, optimizer, n: None):
    """A step; its loss, and what `before_step` says if it is given."""
    loss = backward(model, n)
    said = before_step(model, optimizer, n)
    optimizer.step()
    optimizer.zero_grad()
    return loss if said is None else (loss, said)


def same(loop, optimizer=adamw, steps=STEPS, chunks=CHUNKS, in_backward=False, **more):
    """Run the loop both ways; whether updates ended up in backward must be as expected."""

    def run(model, optimizer):
        return [loop(model, optimizer, n) for n in range(steps)]

    stats = both_ways(drawn(make), run, optimizer, chunks=chunks, **more)
    assert stats.updates_in_backward == in_backward
    assert stats.iteration_page_loads > 0
