# SPDX-License-Identifier: Apache-2.0
"""The leaves of arguments and results: PyTorch's own, in its order."""

from __future__ import annotations

import collections

import pytest
import torch
from torch.utils import _pytree

from penstock.paging.leaves import tree_leaves

Pair = collections.namedtuple("Pair", "first second")


class Own:
    def __init__(self, *parts):
        self.parts = parts


_pytree.register_pytree_node(Own, lambda own: (list(own.parts), None), lambda x, _: Own(*x))

x, weight = torch.ones(2), torch.nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    "tree",
    [
        x,
        weight,
        None,
        ((x, weight, None), {"dtype": torch.float32, "dim": [0, -1], "eps": 1e-5, "way": "mean"}),
        {"b": x, "a": {"d": [weight], "c": ()}},
        (torch.Size([2, 3]), slice(1, 2), x.shape, range(3), {1, 2}, object),
        (Pair(x, [weight]), collections.OrderedDict(b=x, a=[1])),
        (collections.defaultdict(list, b=[x], a=[1]), collections.deque([x, (weight, 2)])),
        [Own(x, [weight, Own(3)]), Own()],
        (x.untyped_storage(), torch.sparse_coo_tensor(([0],), [1.0], (2,)), torch.strided),
    ],
)
def test_they_are_pytorchs_in_its_order(tree):
    got, want = tree_leaves(tree), _pytree.tree_leaves(tree)
    assert len(got) == len(want)
    assert all(a is b or (a == b and type(a) is type(b)) for a, b in zip(got, want, strict=True))
