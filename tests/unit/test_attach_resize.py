# SPDX-License-Identifier: Apache-2.0
"""resize(): the budget of an attachment changes between passes, and nothing else does."""

from __future__ import annotations

import copy

import pytest
import torch
from attach_models import PAGE, page, rows, stack

from penstock.errors import OutOfMemory, UsageError
from penstock.units import KIB

pytestmark = pytest.mark.usefixtures("no_grad")


def test_resize_changes_the_budget_between_passes():
    model = stack(16)
    reference = copy.deepcopy(model)
    with page(model, 200) as attached:
        for kib in (200, 80, 140, 64, 260):
            attached.resize(kib * KIB)
            assert attached.budget == kib * KIB
            for seed in range(3):
                assert torch.equal(model(rows(seed=seed)), reference(rows(seed=seed)))
            assert attached.stats().gpu_memory_bytes == kib * KIB
            assert attached.stats().device_bytes <= kib * KIB


def test_resize_takes_sizes_in_words():
    with page(stack(8), 80) as attached:
        attached.resize("96KiB")
        assert attached.budget == 96 * KIB


def test_resize_below_the_smallest_changes_nothing():
    model = stack(8)
    reference = copy.deepcopy(model)
    with page(model, 80) as attached:
        model(rows())
        with pytest.raises((OutOfMemory, torch.OutOfMemoryError), match="KiB"):
            attached.resize(PAGE)
        assert attached.budget == 80 * KIB
        assert torch.equal(model(rows()), reference(rows()))


def test_resize_of_several_models():
    models = [stack(8), stack(8)]
    references = copy.deepcopy(models)
    with page(models, 200) as attached:
        for kib in (200, 64, 120):
            attached.resize(kib * KIB)
            for _ in range(2):
                for model, reference in zip(models, references, strict=True):
                    assert torch.equal(model(rows()), reference(rows()))
            assert attached.stats().device_bytes <= kib * KIB


def test_resize_after_detach_is_refused():
    attached = page(stack(8), 80)
    attached.detach()
    with pytest.raises(UsageError, match="has been detached"):
        attached.resize("100KiB")
