# SPDX-License-Identifier: Apache-2.0
"""torch.compile of attached models: the results of resident ones, whichever comes first."""

from __future__ import annotations

import warnings

import pytest
import torch
from attach_models import page, rows, stack, with_reference
from torch import _dynamo as dynamo
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from penstock.errors import UsageError
from penstock.paging import attach_training
from penstock.units import KIB, MIB

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture(autouse=True)
def traced():
    """Files whose functions Dynamo has compiled."""
    files: set[str] = set()

    dynamo.reset()
    handle = dynamo.convert_frame.register_bytecode_hook(
        lambda old, new: files.add(old.co_filename)
    )
    yield files
    handle.remove()
    dynamo.reset()


def compiled(model: nn.Module, backend: str = "eager") -> nn.Module:
    return torch.compile(model, backend=backend)


def ran(model: nn.Module) -> nn.Module:
    made = compiled(model)
    made(rows())
    return made


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    model(rows())
    return model


def parts(model: nn.Module) -> nn.Module:
    for part in model.children():
        part.compile(backend="eager")
    return model


@pytest.mark.parametrize("before", [compiled, ran, in_place, parts])
@pytest.mark.parametrize("which", ["model", "made"])
def test_a_compiled_model_can_be_attached(before, which, traced):
    model, reference = with_reference(stack())
    made = before(model)
    traced.clear()
    with page(model if which == "model" else made) as attached:
        for seed in range(5):
            assert torch.equal(made(rows(seed=seed)), reference(rows(seed=seed)))
        assert attached.stats().mismatches == 0
        assert attached.stats().bytes_in > 2 * attached.weight_bytes  # it does not fit
    assert not [file for file in traced if "/penstock/" in file]
    assert torch.equal(made(rows()), reference(rows()))


def test_an_attached_model_can_be_compiled(traced):
    model, reference = with_reference(stack())
    with page(model) as attached:
        made = compiled(model, "aot_eager")
        for count in (4, 4, 7, 4, 9):  # other shapes are compiled anew
            assert torch.equal(made(rows(count)), reference(rows(count)))
        assert attached.stats().mismatches == 0
    assert not [file for file in traced if "/penstock/" in file]


@pytest.mark.parametrize("safety", ["normal", "strict"])
def test_each_pass_runs_what_was_compiled(safety):
    """Also one that is watched, or bits would depend on that."""
    runs = []

    def backend(graph, _):
        return lambda *args: runs.append(None) or graph(*args)

    model = stack()
    between = torch.compile(torch.relu, backend=backend)
    model.insert(4, nn.ReLU())
    model[4].forward = between
    with page(model, safety=safety):
        for seed in range(3):
            model(rows(seed=seed))
            assert len(runs) == seed + 1


@pytest.mark.parametrize("first", ["attached", "compiled"])
def test_a_compiled_model_can_be_trained(first):
    model, reference = with_reference(stack(6).train())
    ours, theirs = (torch.optim.AdamW(each.parameters(), lr=1e-3) for each in (model, reference))
    made = compiled(model, "aot_eager") if first == "compiled" else None
    emulated = {"granularity": 4 * KIB, "capacity": 64 * MIB}
    with (
        torch.enable_grad(),
        attach_training(
            model, ours, device="emulated", gpu_memory=300 * KIB, emulated=emulated
        ) as attached,
    ):
        made = made or compiled(model, "aot_eager")
        for seed in range(8):
            for one, optimizer in ((made, ours), (reference, theirs)):
                one(rows(seed=seed)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert attached.stats().bytes_in > 0
    for name, value in reference.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def trace(model, args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(model, args)


def fx(model, args):
    return make_fx(model)(*args)


@pytest.mark.parametrize("record", [torch.export.export, trace, fx])
@pytest.mark.parametrize("training", [False, True])
def test_recording_operators_is_refused(record, training):
    model, reference = with_reference(stack())
    if training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        emulated = {"granularity": 4 * KIB, "capacity": 64 * MIB}
        options = {"device": "emulated", "gpu_memory": 300 * KIB, "emulated": emulated}
        attached = attach_training(model, optimizer, **options)
    else:
        attached = page(model)
    with attached:
        with pytest.raises(UsageError, match="graph of operators"):
            record(model, (rows(),))
        assert torch.equal(model(rows()), reference(rows()))
    recorded = record(model, (rows(),))
    module = recorded if isinstance(recorded, nn.Module) else recorded.module()
    assert torch.equal(module(rows()), reference(rows()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripting_is_refused():
    model, reference = with_reference(stack())
    with page(model):
        for part in (model, model[1]):
            with pytest.raises(UsageError, match="cannot be scripted"):
                torch.jit.script(part)
        assert torch.equal(model(rows()), reference(rows()))
    assert torch.equal(torch.jit.script(model)(rows()), reference(rows()))


def test_capture_into_a_graph_is_refused(monkeypatch):
    from penstock.paging import compiled as at

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    at.refuse_capture()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UsageError, match="CUDA graph"):
        at.refuse_capture()
