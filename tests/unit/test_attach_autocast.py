# SPDX-License-Identifier: Apache-2.0
"""autocast, which keeps a copy of each weight that could be trained until its context ends."""

from __future__ import annotations

import pytest
import torch
from attach_models import WIDTH, page, rows, same_passes, stack, with_reference
from torch.utils._python_dispatch import TorchDispatchMode

LAYERS = 40  # 650 KiB, and 320 of copies


@pytest.mark.parametrize("safety", ["normal", "strict", "fast"])
@pytest.mark.parametrize("around", ["a pass", "all of them"])
def test_copies_of_all_weights_need_no_room(around, safety):
    model, reference = with_reference(stack(LAYERS))
    autocast = torch.autocast("cpu", torch.bfloat16)
    with page(model, 160, safety=safety), torch.no_grad():
        for _ in range(2):
            with autocast:
                assert same_passes(model, reference, 1 if around == "a pass" else 4)
        assert same_passes(model, reference)


class Casts(TorchDispatchMode):
    """Counts them."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0].shape == (WIDTH, WIDTH)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kib", "times"), [(4096, 1), (700, 3)])
def test_copies_that_fit_stay(kib, times):
    model = stack(LAYERS)
    with page(model, kib), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with Casts() as casts:
            for _ in range(3):
                model(rows())
        assert casts.count == times * LAYERS
