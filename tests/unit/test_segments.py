# SPDX-License-Identifier: Apache-2.0
"""Whose settings of PyTorch's allocator hold, and that they come back."""

from __future__ import annotations

import pytest
import torch

from penstock.paging import segments


@pytest.fixture
def allocator(monkeypatch):
    """What is set, and all that was."""
    texts = [""]
    for name in segments._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, nobody in (("_users", 0), ("_before", None), ("_left", ("", ""))):
        monkeypatch.setattr(segments, name, nobody)
    monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: "native", raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: texts[-1])
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", texts.append)
    return texts


def test_segments_are_expandable_until_the_last_one_ends(allocator):
    segments.expand()
    segments.expand()
    assert allocator[1:] == ["expandable_segments:True"]
    segments.restore()
    assert len(allocator) == 2
    segments.restore()
    assert allocator[2:] == ["expandable_segments:False"]


@pytest.mark.parametrize("before", ["", "max_split_size_mb:200"])
def test_the_next_model_has_them_again(allocator, before):
    """What was set back is no choice of the user's."""
    allocator.append(before)
    for _ in range(3):
        segments.expand()
        assert allocator[-1].endswith("expandable_segments:True")
        assert allocator[-1].startswith(before)
        segments.restore()
        assert allocator[-1].endswith("expandable_segments:False")
    allocator.append("expandable_segments:True")  # and this is one
    segments.expand()
    segments.restore()
    assert allocator[-1] == "expandable_segments:True"


def test_what_else_is_set_stays(allocator):
    allocator.append("max_split_size_mb:200")
    segments.expand()
    assert allocator[-1] == "max_split_size_mb:200,expandable_segments:True"
    segments.restore()
    assert allocator[-1] == "max_split_size_mb:200,expandable_segments:False"


def test_what_the_user_chose_stays(allocator):
    allocator.append("expandable_segments:False")
    segments.expand()
    segments.restore()
    assert len(allocator) == 2


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_another_allocator_than_torchs_is_not_spoken_to(allocator, backend, monkeypatch):
    """Penstock's own warns of settings that it has no use for."""
    monkeypatch.setattr(torch._C, "_cuda_getAllocatorBackend", lambda: backend, raising=False)
    segments.expand()
    segments.restore()
    assert allocator == [""]


def test_the_environment_tells_where_torch_does_not(allocator, monkeypatch):
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native,max_split_size_mb:99")
    segments.expand()
    segments.restore()
    assert allocator[1] == "backend:native,max_split_size_mb:99,expandable_segments:True"


def test_an_allocator_that_takes_no_settings_is_no_error(allocator, monkeypatch):
    def refuse(text):
        raise RuntimeError("not this one")

    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", refuse)
    segments.expand()
    segments.restore()
