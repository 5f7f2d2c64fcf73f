# SPDX-License-Identifier: Apache-2.0
"""Regions of several layers that backward computes again: their weights need not all be there."""

from __future__ import annotations

import pytest
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_both import STEPS, plain_step
from training_tower import WIDTH, Layer, adamw, page, pair, same_state, same_weights


class Regions(nn.Module):
    """Two regions of three layers, which may be regions within them."""

    def __init__(self, *, reentrant, nested):
        super().__init__()
        self.table = nn.Embedding(300, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(6))
        self.head = nn.Linear(WIDTH, 300)
        self.reentrant, self.nested = reentrant, nested

    def forward(self, ids):
        x = self.table(ids)
        for n in (0, 3):
            x = checkpoint(self.region, x, n, use_reentrant=self.reentrant)
        return self.head(x)

    def region(self, x, n):
        for layer in self.layers[n : n + 3]:
            x = checkpoint(layer, x, use_reentrant=False) if self.nested else layer(x)
        return x


@pytest.mark.parametrize("in_backward", [None, False])
@pytest.mark.parametrize(("reentrant", "nested"), [(False, True), (False, False), (True, False)])
def test_a_region_that_is_larger_than_the_budget(reentrant, nested, in_backward):
    plain, paged = pair(Regions, reentrant=reentrant, nested=nested)
    first, second = adamw(plain), adamw(paged)
    want = [plain_step(plain, first, n) for n in range(STEPS)]
    with page(paged, second, chunks=1, step_in_backward=in_backward) as attached:
        assert [plain_step(paged, second, n) for n in range(STEPS)] == want
        assert attached.stats().iteration_page_loads > 0
        assert same_state(first, second)
    assert same_weights(plain, paged)
