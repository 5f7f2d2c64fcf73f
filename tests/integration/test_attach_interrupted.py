# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the middle of a pass, where PyTorch runs no hooks on the way out."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from penstock import attach, attachments
from penstock.models.configs import get_config
from penstock.models.gpt import build_on_meta
from penstock.models.weights import load_model, synthetic_loader


@pytest.mark.parametrize("first_passes", [0, 2])
@torch.no_grad()
def test_an_interrupted_pass_harms_neither_the_next_nor_anything_else(first_passes, monkeypatch):
    config = get_config("tiny")
    load = synthetic_loader(config, 0)
    tokens = torch.arange(8).unsqueeze(0)
    wanted = load_model(config, load)(tokens)
    small = {"granularity": 16 << 10, "capacity": 8 << 20}
    model = build_on_meta(config)
    with attach(model, gpu_memory=300 << 10, device="emulated", load=load, emulated=small):
        for _ in range(first_passes):
            model(tokens)
        with monkeypatch.context() as patch:

            def interrupt(*_):
                raise KeyboardInterrupt

            patch.setattr(model.blocks[1].mlp.up, "forward", interrupt)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    model(tokens)
        for _ in range(3):
            assert torch.equal(model(tokens), wanted)
        assert _get_current_dispatch_mode_stack() == []
        with monkeypatch.context() as patch:
            patch.setattr(model.blocks[1].mlp.up, "forward", interrupt)
            with pytest.raises(KeyboardInterrupt):
                model(tokens)
    assert attachments() == []
    assert _get_current_dispatch_mode_stack() == []
    assert torch.equal(model(tokens), wanted)
