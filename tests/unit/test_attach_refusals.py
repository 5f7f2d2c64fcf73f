# SPDX-License-Identifier: Apache-2.0
"""What attach() refuses, and what an attached model does: one clear error, the model as before."""

from __future__ import annotations

import copy
import io
import pickle
from collections import UserDict

import pytest
import torch
from attach_models import WIDTH, page, rows, same_passes, stack, with_reference
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from penstock.errors import OutOfMemory, UsageError
from penstock.paging import attach

pytestmark = pytest.mark.usefixtures("no_attachments")


def holding(name, tensor):
    model = nn.Sequential(*stack(2))
    model[1].register_parameter(name, nn.Parameter(tensor, requires_grad=False))
    return model


class Opaque(torch.Tensor):
    """Does not tell what it is made of."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return args[0] if func is torch.ops.aten.detach.default else NotImplemented


def opaque():
    return holding("w", torch.Tensor._make_wrapper_subclass(Opaque, (4, 4)))


class Cache(UserDict):
    """Holds a module's weights in the place of its dict, as those of compressed-tensors do."""


def offloaded():
    model = stack(2)
    model[1].__dict__["_parameters"] = Cache(model[1]._parameters)
    return model


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: None, "NoneType"),
        (lambda: type("Pipeline", (), {})(), "Pipeline; try: a module, such as"),
        (list, "the list is empty; try: a list, or a dict, of the modules"),
        (lambda: [stack(2), "b"], "one is of type str; try: a list, or a dict, of the modules"),
        (lambda: set(stack(2)), r"a set does not tell them .*; try: list\(\) of it"),
        (lambda: iter(stack(2)), r"does not tell them .*; try: list\(\) of it"),
        (lambda: torch.jit.script(stack(2)), "TorchScript"),
        (lambda: nn.Sequential(torch.jit.trace(stack(2), rows())), "TorchScript"),
        (opaque, r"1\.w .*Opaque.*; try: a plain tensor"),
        (lambda: holding("w", torch.eye(4).to_sparse()), r"1\.w .*sparse.*; try: a plain tensor"),
        (lambda: nn.Sequential(*stack(1), nn.LazyLinear(3)), r"1\.weight .*; try: one forward"),
        (lambda: holding("w", torch.ones(4, dtype=torch.complex64).conj()), r"1\.w .*; try: a pl"),
        (nn.ReLU, "no parameters or buffers; try: run it"),
        (offloaded, r"1 keeps its weights in a Cache.*; try: attach\(\) before"),
    ],
)
def test_models_that_cannot_be_paged(make, says):
    model = make()
    with pytest.raises(UsageError, match=says):
        attach(model, device="emulated")
    if isinstance(model, torch.jit.ScriptModule):
        assert model(rows()).shape == (4, WIDTH)


def test_a_sharded_model_is_refused_with_a_remedy(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/at", rank=0, world_size=1
    )
    try:
        model = fully_shard(stack(2), mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(UsageError, match=r"is a DTensor; try: a model that is whole"):
            page(model, 256)
    finally:
        torch.distributed.destroy_process_group()


def test_an_option_that_the_emulated_gpu_does_not_have():
    with pytest.raises(UsageError, match="bogus") as refused:
        page(stack(), emulated={"bogus": 1})
    assert "granularity" in refused.value.remedy
    for options in (5, {"capacity": "1GiB"}, {"capacity": -1}, {"seed": 1.5}, {"seed": 1 << 70}):
        with pytest.raises(UsageError, match="emulated"):
            attach(stack(), device="emulated", emulated=options)


def test_remedies_name_the_arguments_of_the_call():
    with pytest.raises(OutOfMemory) as refused:
        page(stack(), 4)
    assert refused.value.remedy == 'gpu_memory="1MiB"'
    with pytest.raises(OutOfMemory) as refused:
        page(stack(), 1 << 20)
    assert refused.value.remedy == 'gpu_memory="64MiB" or less'


def test_attached_already_as_a_whole_in_part_or_by_a_weight():
    model, reference = with_reference(stack())
    other = stack()
    other[2].weight = model[1].weight
    viewing = nn.Linear(WIDTH, WIDTH, bias=False)
    viewing.weight = nn.Parameter(model[1].weight)
    with page(model):
        for again in (model, model[2], model[:4], nn.Sequential(nn.ReLU(), model)):
            with pytest.raises(UsageError, match="attached already"):
                page(again)
        with pytest.raises(UsageError, match=r"2\.weight is a weight of another model"):
            page(other)
        assert same_passes(model, reference)
    page(other).detach()
    page(viewing).detach()


@pytest.mark.parametrize(
    "convert",
    [
        lambda model: model.half(),
        lambda model: model.double(),
        lambda model: model.to(torch.bfloat16),
        lambda model: model.to("meta"),
        lambda model: model.share_memory(),
        lambda model: model.to_empty(device="cpu"),
        lambda model: model[3].half(),
        lambda model: nn.Sequential(nn.ReLU(), model).half(),
    ],
)
@pytest.mark.parametrize("kib", [80, 1024])
def test_conversions_are_refused(convert, kib):
    model, reference = with_reference(stack())
    with page(model, kib):
        assert same_passes(model, reference, 2)
        with pytest.raises(UsageError, match="cannot be moved, cast or shared"):
            convert(model)
        assert same_passes(model, reference, 2)
    assert model.half()[0].weight.dtype is torch.float16


class Casting(nn.Module):
    """Casts a part of itself in forward, as mixtures of experts do with their routers."""

    def __init__(self, dtype, tied=False):
        super().__init__()
        self.body = stack(4).bfloat16()
        self.router = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.dtype = dtype
        if tied:
            self.router.weight = self.body[0].weight

    def forward(self, x):
        x = self.body(x.bfloat16())
        self.router = self.router.to(self.dtype)
        return x * self.router(x.to(self.dtype)).softmax(-1)


@pytest.mark.parametrize("safety", ["normal", "strict", "fast"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_model_casts_of_itself_in_forward_is_cast(dtype, safety):
    model, reference = with_reference(Casting(dtype).eval().requires_grad_(False))
    with page(model, 80, safety=safety):
        assert same_passes(model, reference, 4)
        assert model.router.weight.dtype is dtype
    assert model.router.weight.dtype is dtype
    assert model.body[0].weight.dtype is torch.bfloat16
    assert same_passes(model, reference)


class Stored(nn.Linear):
    """A layer that lies in eight bits and is wide while it runs, as diffusers has layers."""

    def forward(self, x):
        self.to(torch.float32)
        x = super().forward(x)
        self.to(torch.float8_e4m3fn)
        return x


@pytest.mark.parametrize("safety", ["normal", "strict"])
def test_layers_that_are_wide_while_they_run(safety):
    layers = [Stored(WIDTH, WIDTH).to(torch.float8_e4m3fn) for _ in range(8)]
    model, reference = with_reference(nn.Sequential(*layers).requires_grad_(False))
    with page(model, 80, safety=safety) as attached:
        assert same_passes(model, reference, 4)
        assert all(attached.store.is_in_place(*each) for each in attached.store.slots())
        with pytest.raises(UsageError, match="cannot be moved, cast or shared"):
            model.float()
    assert same_passes(model, reference)


def with_wide_part(model, x, change=None):
    """A pass whose last part runs in float32, as pipelines have it with their decoders."""
    part = model[4:]
    x = model[:4](x.half())
    part.float()
    if change is not None:
        change(part)
    x = part(x.float())
    part.half()
    return x


def write(part):
    part[1].weight.data[0] = -0.0
    part[2].bias.add_(1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("safety", ["normal", "strict", "fast"])
def test_a_part_is_widened_between_passes_and_narrowed_again(safety, mode):
    model, reference = with_reference(stack().half())
    before = dict(model.named_parameters())
    with page(model, 80, safety=safety), mode():
        for x in [rows(seed) for seed in range(4)]:
            assert torch.equal(with_wide_part(model, x), with_wide_part(reference, x))
    assert all(each is before[name] for name, each in model.named_parameters())
    assert same_passes(model.float(), reference.float())


def test_what_is_changed_while_it_is_wide_is_kept():
    model, reference = with_reference(stack().half())
    with page(model, 80):
        for x in [rows(seed) for seed in range(3)]:
            assert with_wide_part(model, x).equal(with_wide_part(reference, x))
            assert with_wide_part(model, x, write).equal(with_wide_part(reference, x, write))
        assert with_wide_part(model, rows()).equal(with_wide_part(reference, rows()))
    for each, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(each.view(torch.int16), other.view(torch.int16))


def test_a_part_that_would_not_fit_when_it_is_wide_is_not_cast():
    model, reference = with_reference(stack().half())
    with page(model, 80) as attached:
        model[:4].float()  # 66 KiB
        with pytest.raises(OutOfMemory, match=r"4\.weight and its like it would be 81"):
            model[4].float()
        attached.resize("100KiB")
        model[4].float()
        attached.resize("80KiB")
        model.half()
        assert same_halves(model, reference)


def same_halves(model, reference):
    return all(
        torch.equal(model(rows(seed=n).half()), reference(rows(seed=n).half())) for n in (0, 1)
    )


def test_what_other_modules_hold_as_well_is_not_cast():
    model = Casting(torch.float32, tied=True).eval().requires_grad_(False)
    with page(model, 80), pytest.raises(UsageError, match="cannot be moved, cast or shared"):
        model(rows())


@pytest.mark.parametrize(
    "change", [torch.Tensor.detach, lambda each: each.to("meta"), torch.Tensor.share_memory_]
)
def test_in_forward_too_nothing_is_moved_or_becomes_a_view(change):
    model, reference = with_reference(stack(4))
    changed = model[2].register_forward_pre_hook(lambda *_: model[3]._apply(change) and None)
    with page(model, 80):
        with pytest.raises(UsageError, match="cannot be moved, cast or shared"):
            model(rows())
        changed.remove()
        assert same_passes(model, reference)


def test_conversions_that_change_nothing_are_not():
    model, reference = with_reference(stack())
    with page(model):
        assert model.to("cpu") is model
        assert model.float() is model
        model.append(nn.Linear(WIDTH, WIDTH).half())
        reference.append(copy.deepcopy(model[8]).float())
        model.float()
        assert same_passes(model, reference)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, pickle.dumps, lambda model: torch.save(model, io.BytesIO())],
)
def test_copies_are_refused(duplicate):
    model, reference = with_reference(stack())
    with page(model):
        for each in (model, model[3]):
            with pytest.raises(UsageError, match=r"copied or pickled.*before attaching"):
                duplicate(each)
        assert same_passes(model, reference)
    duplicate(model)


def test_a_loader_that_fails_or_fills_nothing_is_undone():
    reference = stack()
    content = reference.state_dict()
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(8)]).eval()
    before = dict(model.named_parameters())

    def broken(name, destination):
        if name == "5.weight":
            raise OSError("the disk has gone")
        destination.copy_(content[name])

    with pytest.raises(OSError, match="gone"):
        page(model, load=broken)
    with pytest.raises(UsageError, match=r"load\(\) left 5\.bias as it was"):
        page(model, load=lambda n, d: d.copy_(content[n]) if n != "5.bias" else None)
    assert all(model.get_parameter(name) is tensor for name, tensor in before.items())
    loaded = []

    def fill(name, destination):
        loaded.append(name)
        destination.copy_(content[name])

    with page(model, load=fill):
        assert loaded == list(content)
        assert same_passes(model, reference)


def test_what_looks_like_nothing_is_filled():
    with torch.device("meta"):
        model = nn.Linear(WIDTH, WIDTH).eval()
        model.register_buffer("mark", torch.zeros(1, dtype=torch.uint8))

    def fill(name, destination):
        destination.fill_(0xA5 if name == "mark" else float("nan"))

    with page(model, load=fill):
        assert model.mark.item() == 0xA5
        assert model(rows()).isnan().all()


def test_weights_that_are_nowhere_are_refused_with_both_ways_to_have_them():
    with torch.device("meta"):
        model = nn.Sequential(*stack(2))
    with pytest.raises(UsageError, match=r"no content.*load=.*offloader.*attach\(\) before"):
        page(model)
