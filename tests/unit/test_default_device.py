# SPDX-License-Identifier: Apache-2.0
"""Programs that have another default device, as torch.set_default_device("cuda") gives them.

Here it is "meta", where what is made by mistake has no bytes.
"""

from __future__ import annotations

import copy

import pytest
import torch
from attach_models import PAGE, WIDTH, page, rows, stack, with_reference
from torch import nn

from penstock.paging import attach_training
from penstock.paging.managed import attach_managed
from penstock.units import KIB, MIB

STEPS = 10


def tied():
    model = nn.Sequential(*stack(6))
    model[4].weight = model[1].weight
    return model


def same_state(model, reference):
    state = model.state_dict()
    return all(torch.equal(state[name], own) for name, own in reference.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("safety", ["normal", "strict", "fast"])
def test_attached(safety):
    model, reference = with_reference(tied())
    inputs = [rows(seed=n) for n in range(4)]
    with torch.device("meta"), page(model, 64, safety=safety) as attached:
        for x in inputs:
            assert torch.equal(model(x), reference(x))
            for each in (model, reference):
                each[2].weight.mul_(1.01)
        assert same_state(model, reference)
        assert attached.stats().bytes_in > attached.stats().gpu_memory_bytes
    assert same_state(model, reference)


@torch.no_grad()
def test_encoded():
    model, reference = with_reference(stack().to(torch.bfloat16))
    inputs = rows().to(torch.bfloat16)
    with torch.device("meta"), page(model, 40, compress="bf16") as attached:
        model(inputs)
        assert attached.stats().encoded_bytes > 0
        assert same_state(model, reference)
        assert torch.equal(model(inputs), reference(inputs))
    assert same_state(model, reference)


@torch.no_grad()
def test_dropped_content():
    model = stack()
    with torch.device("meta"):
        page(model).detach(keep=False)
    assert all((p.numel(), p.device.type) == (0, "cpu") for p in model.parameters())


@torch.no_grad()
def test_managed():
    model, reference = with_reference(nn.Sequential(*stack(6), nn.BatchNorm1d(WIDTH)).eval())
    inputs = rows()
    with torch.device("meta"):
        attached = attach_managed(model, device="emulated", gpu_memory=8 * MIB)
        assert torch.equal(model(inputs), reference(inputs))
        attached.detach()
    assert same_state(model, reference)


class Descent(torch.optim.Optimizer):
    """One that is not PyTorch's, and so is tried out before it is attached."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])


def attach(model, optimizer):
    emulated = {"granularity": PAGE, "capacity": 64 * MIB}
    return attach_training(
        model, optimizer, device="emulated", gpu_memory=150 * KIB, emulated=emulated
    )


def test_training():
    model = stack()
    reference = copy.deepcopy(model)
    inputs = rows()
    for each in (reference, model):
        optimizer = Descent(each.parameters())
        with torch.device("meta"):
            attached = attach(each, optimizer) if each is model else None
            for _ in range(STEPS):
                each(inputs).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            if attached is not None:
                assert attached.stats().bytes_in > 0
                assert same_state(model, reference)
                attached.detach()
    assert same_state(model, reference)
