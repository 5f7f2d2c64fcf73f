# SPDX-License-Identifier: Apache-2.0
"""A program may have another default device, which is not where host memory is to be made.

"meta" stands for the GPU here: its tensors cannot be read by the host either.
"""

from __future__ import annotations

import torch
from attach_models import PAGE, page, rows, same_passes, stack, with_reference

from penstock.paging.managed import attach_managed
from penstock.paging.training import attach_training
from penstock.units import KIB, MIB

WHERE = {"device": "emulated", "emulated": {"granularity": PAGE, "capacity": 64 * MIB}}


def same_state(model, reference):
    states = model.state_dict(), reference.state_dict()
    return all(torch.equal(*values) for values in zip(*map(dict.values, states), strict=True))


@torch.no_grad()
def test_of_weights_that_are_encoded():
    model, reference = with_reference(stack().bfloat16())
    x = rows().bfloat16()
    with torch.device("meta"), page(model, 40, compress="bf16") as attached:
        assert attached.stats().encoded_bytes
        assert all(torch.equal(model(x), reference(x)) for _ in range(3))
        assert same_state(model, reference)
        assert same_state(model, reference)  # another time: it may be the same copies
    assert same_state(model, reference)


@torch.no_grad()
def test_of_managed_weights():
    model, reference = with_reference(stack())
    with torch.device("meta"):
        attached = attach_managed(model, gpu_memory=80 * KIB, **WHERE)
    assert same_passes(model, reference)
    with torch.device("meta"):
        attached.detach()
    assert same_state(model, reference)


@torch.no_grad()
def test_of_a_model_that_is_dropped():
    attached = page(stack())
    with torch.device("meta"):
        model = attached.detach(keep=False)
    assert {(p.device.type, p.numel()) for p in model.parameters()} == {("cpu", 0)}


def test_in_training():
    model, reference = stack(), stack()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, reference)]
    with torch.device("meta"):
        attached = attach_training(model, optimizers[0], gpu_memory=200 * KIB, **WHERE)
    for n in range(3):
        losses = []
        for each, optimizer in zip((model, reference), optimizers, strict=True):
            loss = each(rows(seed=n)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss)
        assert torch.equal(*losses)
    with torch.device("meta"):
        assert same_state(model, reference)
        attached.detach()
    assert same_state(model, reference)
