# SPDX-License-Identifier: Apache-2.0
"""attach() on modules of many kinds: same bits, within the budget, and an ordinary model back.

Runs on the emulated GPU, and on a CUDA device as well where there is one.
"""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from fault_tally import each_call, fail_in_turn
from torch import nn

from penstock.errors import OutOfMemory, PenstockError, UsageError
from penstock.paging import attach, attachments, memory_summary, stats
from penstock.units import KIB, MIB

GRANULE = 64 * KIB
DEVICES = ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda":  # what tests before leave would count against the budget
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
    return request.param


def page(model, device, *, chunks=8, **more):
    """Attach with a budget of `chunks` chunks (of 64 KiB emulated, 2 MiB on CUDA)."""
    if device == "emulated":
        more.setdefault("emulated", {"granularity": GRANULE, "capacity": 256 * MIB})
        return attach(model, device=device, gpu_memory=chunks * GRANULE, chunk_size=GRANULE, **more)
    more.pop("emulated", None)
    # Room for activations and cuBLAS's workspace, which count on a real device.
    return attach(model, device=device, gpu_memory=chunks * 2 * MIB + 64 * MIB, **more)


def on(device, tensor):
    return tensor.cuda() if device == "cuda" else tensor


class Stack(nn.Module):
    """Linear layers of 256 x 256 float32: 256 KiB of weights each."""

    def __init__(self, layers=8, width=256):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def reference(model, x, device):
    """The resident model's output on the same device."""
    with torch.no_grad():
        if device == "cuda":
            return copy.deepcopy(model).cuda()(x.cuda())  # .cuda() would cut shared storages
        return model(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunks", [6, 12, 64])
@pytest.mark.parametrize("safety", ["normal", "strict"])
def test_same_bits_at_any_budget(device, dtype, chunks, safety):
    torch.manual_seed(0)
    model = Stack().to(dtype).eval()
    x = torch.randn(4, 256, dtype=dtype)
    want = reference(model, x, device)
    with page(model, device, chunks=chunks, safety=safety) as attached, torch.no_grad():
        for _ in range(5):
            assert torch.equal(model(on(device, x)), want)
        assert attached.stats().mismatches == 0
        if device == "emulated":
            assert attached.stats().peak_device_bytes <= chunks * GRANULE
    with torch.no_grad():
        assert torch.equal(reference(model, x, device), want)


class Products(nn.Module):
    """Of a weight and rows that cannot be folded without a copy."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(386, 768, bias=False)

    def forward(self, x):
        x, weight = x.transpose(1, 2), self.layer.weight
        return torch.stack([self.layer(x), x @ weight.T, nn.functional.linear(x, weight[:])])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("safety", ["normal", "strict"])
def test_products_are_chosen_as_without_a_mode(device, mode, safety):
    torch.manual_seed(0)
    model, x = Products(), torch.randn(2, 386, 1)
    resident = copy.deepcopy(model).to("cuda" if device == "cuda" else "cpu")
    with page(model, device, chunks=32, safety=safety), mode():
        for _ in range(4):  # the first ones are watched
            assert torch.equal(model(on(device, x)), resident(on(device, x)))


@pytest.mark.parametrize("safety", ["normal", "fast"])
def test_steady_passes_move_what_was_planned(device, safety):
    model = Stack().eval()
    x = on(device, torch.randn(1, 256))
    with page(model, device, chunks=13, safety=safety) as attached, torch.no_grad():
        for _ in range(4):
            model(x)
        before = attached.pager.stats()
        for _ in range(3):
            model(x)
        after = attached.pager.stats()
    if device == "emulated":
        assert after["streamed_pages"] > 0
    assert after["bytes_in"] - before["bytes_in"] == 3 * after["planned_bytes_in"]
    if safety == "fast":  # a page comes back to its slot, to which its address still leads
        assert after["map_calls"] == before["map_calls"]
    assert after["demanded_pages"] == before["demanded_pages"]


def test_random_delays_change_nothing():
    torch.manual_seed(1)
    model = Stack().eval()
    x = torch.randn(2, 256)
    want = reference(model, x, "emulated")
    for seed in range(8):
        emulated = {"granularity": GRANULE, "seed": seed, "max_delay_us": 500}
        with page(model, "emulated", chunks=7, emulated=emulated), torch.no_grad():
            for _ in range(3):
                assert torch.equal(model(x), want)


def test_ties_and_views_stay_shared(device):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(1024, 128)
            self.between = nn.Linear(128, 128)
            self.head = nn.Linear(128, 1024, bias=False)
            self.head.weight = self.embedding.weight
            self.part = nn.Parameter(self.between.weight.detach()[:64])  # a view

        def forward(self, x):
            return self.head(self.between(self.embedding(x))) + self.part.sum()

    model = Tied().eval()
    tokens = torch.arange(16)[None]
    want = reference(model, tokens, device)
    parameter = model.between.weight
    with page(model, device, chunks=16) as attached, torch.no_grad():
        assert attached.weight_bytes == 1024 * 128 * 4 + 128 * 128 * 4 + 128 * 4
        assert model.head.weight is model.embedding.weight
        assert model.between.weight is parameter
        for _ in range(3):
            assert torch.equal(model(on(device, tokens)), want)
        assert model.part.data_ptr() == model.between.weight.data_ptr()
    assert model.head.weight is model.embedding.weight
    assert model.between.weight is parameter
    assert model.part.data_ptr() == model.between.weight.data_ptr()


def test_an_access_that_ownership_does_not_tell(device):
    """MultiheadAttention's own path reads its out_proj's weight without calling out_proj."""
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    x = torch.randn(2, 16, 128)
    want = reference(model, x, device)
    with page(model, device, chunks=20) as attached, torch.no_grad():
        mismatches = []
        for _ in range(4):
            got = model(on(device, x))
            assert torch.equal(got, want)
            mismatches.append(attached.stats().mismatches)
        assert mismatches[1:] == mismatches[1:2] * 3  # what the first pass has shown is known


def test_another_order_is_noticed_and_correct(device):
    class Fork(Stack):
        backwards = False

        def forward(self, x):
            for layer in reversed(self.layers) if self.backwards else self.layers:
                x = torch.tanh(layer(x))
            return x

    model = Fork().eval()
    x = torch.randn(2, 256)
    want = reference(model, x, device)
    model.backwards = True
    other = reference(model, x, device)
    model.backwards = False
    with page(model, device, chunks=7) as attached, torch.no_grad():
        for flip in (False, False, True, True, True, False, True, False):
            model.backwards = flip
            assert torch.equal(model(on(device, x)), other if flip else want)
        if device == "emulated":
            assert attached.stats().mismatches > 0


def test_buffers_that_change_are_kept(device):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(256, 256))
            self.layers = Stack(8)

        def forward(self, x):
            self.seen.add_(1)
            return self.layers(x) + self.seen[0]

    model = Counter().eval()
    with page(model, device, chunks=10) as attached, torch.no_grad():
        for _ in range(5):
            model(on(device, torch.zeros(1, 256)))
        assert attached.stats().bytes_out >= 0
        assert model.state_dict()["seen"][0, 0] == 5
    assert torch.equal(model.seen, torch.full((256, 256), 5.0))


def test_state_dict_is_whole_and_on_the_host(device):
    model = Stack().eval()
    want = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with page(model, device, chunks=7), torch.no_grad():
        model(on(device, torch.zeros(1, 256)))
        got = model.state_dict()
        assert list(got) == list(want)
        assert all(torch.equal(got[name], want[name]) for name in want)
        model.load_state_dict({name: tensor + 1 for name, tensor in want.items()})
        loaded = model.state_dict()
        assert all(torch.equal(loaded[name], want[name] + 1) for name in want)


def test_a_model_on_meta_is_filled_in_place(device):
    with torch.device("meta"):
        model = Stack().eval()
    names = []

    def load(name, destination):
        names.append(name)
        destination.fill_(0.001 * len(names))

    with page(model, device, chunks=7, load=load), torch.no_grad():
        model(on(device, torch.zeros(1, 256)))
    assert names == [name for name, _ in model.named_parameters()]
    assert model.layers[1].bias[0].item() == pytest.approx(0.004)


def test_an_error_in_the_forward_leaves_it_usable(device):
    class Failing(Stack):
        fail = False

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                if self.fail and number == 5:
                    raise ValueError("on purpose")
                x = torch.tanh(layer(x))
            return x

    model = Failing().eval()
    x = torch.randn(1, 256)
    want = reference(model, x, device)
    with page(model, device, chunks=7), torch.no_grad():
        for fail in (True, False, True, False, False):
            model.fail = fail
            if fail:
                with pytest.raises(ValueError, match="on purpose"):
                    model(on(device, x))
            else:
                assert torch.equal(model(on(device, x)), want)


def test_training_is_refused_with_the_remedy(device):
    model = Stack()
    with page(model, device), pytest.raises(UsageError, match="no_grad"):
        model(on(device, torch.zeros(1, 256)))


def test_refusals_leave_the_model_as_it_was():
    model = Stack().eval()
    weight = model.layers[0].weight.detach().clone()
    with pytest.raises(OutOfMemory, match="smallest that works") as refused:
        page(model, "emulated", chunks=2)
    assert refused.value.exit_code == 4
    assert refused.value.needed_bytes > 2 * GRANULE
    with pytest.raises(OutOfMemory, match="free on the device"):
        page(model, "emulated", chunks=1 << 20)
    with pytest.raises(OutOfMemory, match="host memory"):
        page(model, "emulated", host_memory=1 * MIB)
    with pytest.raises(UsageError, match="safety"):
        page(model, "emulated", safety="none")
    with pytest.raises(UsageError, match="device"):
        attach(model, device="tpu")
    with torch.device("meta"):
        empty = Stack()
    with pytest.raises(UsageError, match="meta"):
        page(empty, "emulated")
    assert torch.equal(model.layers[0].weight, weight)
    assert attachments() == []


def test_the_smallest_budget_that_is_named_works():
    model = Stack().eval()
    with pytest.raises(OutOfMemory) as refused:
        page(model, "emulated", chunks=1)
    chunks = -(-refused.value.needed_bytes // GRANULE) + 1  # for what operators make
    with page(model, "emulated", chunks=chunks), torch.no_grad():
        model(torch.zeros(1, 256))


def test_a_budget_below_one_chunk_is_told_the_smallest_that_works():
    model = Stack().eval()
    with pytest.raises(OutOfMemory) as one_chunk:
        page(model, "emulated", chunks=1)
    emulated = {"granularity": GRANULE, "capacity": 256 * MIB}
    with pytest.raises(OutOfMemory, match=r"a budget of 1\.00 KiB is below the small") as refused:
        attach(model, device="emulated", gpu_memory="1KiB", chunk_size=GRANULE, emulated=emulated)
    assert refused.value.remedy == one_chunk.value.remedy
    assert refused.value.needed_bytes == one_chunk.value.needed_bytes
    assert attachments() == []


def test_attached_twice_and_summaries():
    model = Stack().eval()
    with page(model, "emulated") as attached, torch.no_grad():
        with pytest.raises(UsageError, match="already"):
            page(model, "emulated")
        model(torch.zeros(1, 256))
        model(torch.zeros(1, 256))
        assert stats().weight_bytes == attached.weight_bytes
        assert "budget" in memory_summary()
        assert "pass" in attached.explain()
    with pytest.raises(UsageError, match="0 models"):
        stats()
    with pytest.raises(UsageError, match="detached"):
        attached.pager  # noqa: B018


def test_nothing_is_left_behind():
    from penstock.native import EMULATED, Device

    model = Stack().eval()
    with Device(EMULATED, granularity=GRANULE) as watch:
        assert set(watch.live().values()) == {0}
    attached = page(model, "emulated")
    with torch.no_grad():
        model(torch.zeros(1, 256))
    device, left = attached.device, {}
    close = device.close
    device.close = lambda: (left.update(device.live()), close())
    assert device.live()["chunks"] > 0
    attached.detach()
    assert left
    assert set(left.values()) == {0}


@pytest.mark.gpu
def test_the_driver_confirms_the_budget():
    """Free memory, by the driver, never falls by more than the budget."""
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(24)]).half().eval()
    x = torch.randn(8, 2048, dtype=torch.float16, device="cuda")
    budget = 128 * MIB
    torch.mm(torch.ones(8, 8, device="cuda"), torch.ones(8, 8, device="cuda"))
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    with attach(model, device="cuda", gpu_memory=budget) as attached, torch.no_grad():
        for _ in range(6):
            model(x)
            assert before - torch.cuda.mem_get_info()[0] <= budget
        assert attached.stats().streamed_pages > 0


@pytest.mark.parametrize("step", ["_place", "_make_hooks", "_enter_budget"])
def test_the_budget_is_let_go_wherever_attaching_fails(monkeypatch, step):
    from penstock.paging.attach import Attachment
    from penstock.paging.manager import Manager

    left = []
    leave = Manager.leave

    def watched(manager, *args):
        left.append(manager)
        leave(manager, *args)

    monkeypatch.setattr(Manager, "leave", watched)

    def fail(*_):
        raise UsageError("not now")

    monkeypatch.setattr(Attachment, step, fail)
    with pytest.raises(UsageError, match="not now"):
        page(Stack(layers=4, width=128).eval(), "emulated", chunks=4)
    assert len(left) == 1
    assert left[0].budget.shares().limit == 0
    assert attachments() == []


def test_a_failure_at_any_driver_call_is_clean(left):
    """Attach, three passes, detach, with each driver call failing in turn."""
    torch.manual_seed(3)
    x = torch.randn(1, 128)

    def run(fail_at_call):
        model = Stack(layers=4, width=128).eval()
        emulated = {"granularity": GRANULE, "fail_at_call": fail_at_call}
        attached = page(model, "emulated", chunks=4, emulated=emulated)
        try:
            with torch.no_grad():
                for _ in range(3):
                    model(x)
            return attached.device.driver_calls()
        finally:
            try:
                attached.detach()
            except PenstockError:
                attached.detach(keep=False)

    calls = run(0)
    assert calls > 60
    assert fail_in_turn("attach()", run, calls) > calls // 2
    assert len(left) == len(each_call(calls)) + 1
    assert all(set(counts.values()) == {0} for counts in left)


def test_a_model_that_is_not_wanted_back_is_left_empty(device):
    model = Stack().eval()
    attached = page(model, device)
    with torch.no_grad():
        model(on(device, torch.zeros(1, 256)))
    attached.detach(keep=False)
    assert all(parameter.numel() == 0 for parameter in model.parameters())
    assert attachments() == []
