# SPDX-License-Identifier: Apache-2.0
"""attach_training(): the curve, weights and optimizer state of plain training, bit for bit.

Runs on the emulated GPU, whose copies are delayed at random and whose evicted pages hold other
data or nothing: a use that is not declared shows as a wrong curve or as a crash.
"""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from own_thread import in_a_thread
from torch import nn
from torch.autograd import forward_ad
from training_tower import (
    GRANULE,
    TENSORS,
    WIDTH,
    Tower,
    adamw,
    batches,
    both_ways,
    drawn,
    learn,
    loss_of,
    page,
    pair,
    same_state,
    same_weights,
    train,
)

from penstock.errors import OutOfMemory
from penstock.paging.training.stats import least_traffic

OPTIMIZERS = {
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=3e-3, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=3e-3, foreach=True, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_curve_weights_and_state_are_those_of_plain_training(optimizer):
    plain, paged = pair()
    first = OPTIMIZERS[optimizer](plain.parameters())
    second = OPTIMIZERS[optimizer](paged.parameters())
    want = train(plain, first, batches())
    with page(paged, second) as attached:
        assert train(paged, second, batches()) == want
        assert attached.stats().peak_device_bytes <= 26 * GRANULE + TENSORS
        assert all(parameter.grad is None for parameter in paged.parameters())
        assert same_state(first, second)
    assert same_weights(plain, paged)
    assert same_state(first, second)
    # An ordinary model and optimizer again.
    assert train(plain, first, batches(2)) == train(paged, second, batches(2))


@in_a_thread
def test_a_budget_that_cannot_hold_an_update_has_a_remedy():
    model = Tower()
    optimizer = adamw(model)
    with pytest.raises(OutOfMemory, match="smallest that works") as refused:
        page(model, optimizer, gpu_memory=GRANULE)
    budget = refused.value.needed_bytes + 7 * GRANULE  # the forward; the update needs its state
    with page(model, optimizer, gpu_memory=budget):
        with pytest.raises(OutOfMemory, match="used together need at least") as refused:
            train(model, optimizer, batches(size=1))
        assert refused.value.needed_bytes > budget


@pytest.mark.parametrize("recompute", [None, "reentrant", "not reentrant"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("safety", ["normal", "strict"])
def test_recomputation_autocast_and_tied_weights(recompute, autocast, safety):
    run = partial(train, data=batches(), autocast=autocast)
    both_ways(drawn(recompute=recompute), run, safety=safety)


def test_uses_are_complete_without_the_watch(monkeypatch):
    """After the first iteration nothing watches; evicted pages are unmapped, so a miss is fatal."""
    plain, paged = pair(recompute="not reentrant")
    first, second = adamw(plain), adamw(paged)
    want = train(plain, first, batches(8))
    with page(paged, second, safety="strict") as attached:
        monkeypatch.setattr(attached.hooks, "always_watch", False)
        assert train(paged, second, batches(8)) == want
        assert not attached.hooks.watching


@pytest.mark.slow
def test_random_delays_change_nothing():
    for seed in range(6):
        run = partial(train, data=batches(4))
        both_ways(drawn(recompute="not reentrant"), run, seed=seed, chunks=22 + 3 * seed)


@pytest.mark.parametrize("chunks", [24, 32, 40])
def test_steady_steps_follow_the_plan(chunks):
    model, _ = pair(recompute="not reentrant")
    optimizer = adamw(model)
    with page(model, optimizer, chunks=chunks, step_in_backward=True) as attached:
        train(model, optimizer, batches(6))
        before = attached.pager.stats()
        train(model, optimizer, batches(3))
        after = attached.pager.stats()
        stats = attached.stats()
    moved = {key: after[key] - before[key] for key in ("demanded_pages", "plans", "mismatches")}
    assert moved == {"demanded_pages": 0, "plans": 0, "mismatches": 0}
    assert after["bytes_in"] - before["bytes_in"] <= 3 * after["planned_bytes_in"]
    # Pages are large beside these layers, and look-ahead takes some: within a third of the least.
    assert stats.least_bytes_in > 0
    assert stats.iteration_bytes_in <= 1.34 * stats.least_bytes_in + 6 * GRANULE
    assert stats.iteration_bytes_out <= stats.iteration_bytes_in


def test_the_host_holds_weights_and_state_once():
    model, _ = pair()
    optimizer = adamw(model)
    with page(model, optimizer, step_in_backward=True) as attached:
        train(model, optimizer, batches(3))
        stats = attached.stats()
    assert stats.state_bytes == 2 * stats.weight_bytes
    # Each tensor is rounded up to 512 bytes.
    tensors = 3 * len(list(model.parameters()))
    assert stats.host_bytes <= stats.weight_bytes + stats.state_bytes + 512 * tensors


def test_everything_fits_and_nothing_moves():
    model, _ = pair()
    optimizer = adamw(model)
    with page(model, optimizer, chunks=400) as attached:
        train(model, optimizer, batches(5))
        stats = attached.stats()
        assert stats.iteration_bytes_in == stats.iteration_bytes_out == 0
        state = optimizer.state_dict()["state"]
        assert all(float(values["step"]) == 5 for values in state.values())


def test_least_traffic():
    # 10 of weights, all trained, 20 of state.
    both = {"weights": 10, "trained": 10, "state": 20}
    assert least_traffic(**both, room=30) == (0, 0)
    assert least_traffic(**both, room=12) == (18, 18)
    assert least_traffic(**both, room=4) == (20 + 2 * 6, 20 + 6)
    # 10 frozen beside 1 trained with 2 of state.
    assert least_traffic(weights=11, trained=1, state=2, room=5) == (2 + 2 * 6, 2)


class Meddler(nn.Module):
    """Reads weights that others own, and its own by halves; one module runs twice."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, 2 * WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 300)

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.twice(torch.tanh(self.twice(x)))
        x = nn.functional.linear(x, self.other.weight[:WIDTH]).relu_()
        return self.head(x)


@pytest.mark.parametrize("make", [Tower, Meddler])
@pytest.mark.parametrize("recompute", [None, "not reentrant", "reentrant"])
def test_nothing_has_to_stay_from_forward_to_the_step(make, recompute):
    """Uses of modules cover what backward reads, also of outputs that were changed in place."""
    model, _ = pair(make, **({"recompute": recompute} if make is Tower else {}))
    optimizer = adamw(model)
    with page(model, optimizer, chunks=40) as attached:
        train(model, optimizer, batches(2))
        assert not attached.hooks.stays


@pytest.mark.parametrize("safety", ["normal", "strict"])
def test_modules_that_read_what_they_do_not_own(safety):
    def check(attached):
        assert attached.model.unused.weight.grad is None

    run = partial(train, data=batches(6))
    both_ways(drawn(Meddler), run, meanwhile=check, safety=safety)


class Normed(Tower):
    """Weights are made of others in hooks that run before forward."""

    def __init__(self):
        super().__init__()
        for layer in self.layers:
            nn.utils.weight_norm(layer.up)
            nn.utils.weight_norm(layer.down)


def test_weights_that_hooks_make_before_forward():
    plain, paged = Normed(), Normed()
    paged.load_state_dict(plain.state_dict())
    first, second = adamw(plain), adamw(paged)
    want = train(plain, first, batches(6))
    with page(paged, second):
        assert train(paged, second, batches(6)) == want
    assert same_weights(plain, paged)


def test_a_loss_that_reads_weights_itself():
    def run(model, optimizer):
        losses = []
        for ids in batches(6):
            loss = loss_of(model, ids) + 0.1 * model.layers[2].up.weight.square().sum()
            losses.append(learn(optimizer, loss))
        return losses

    both_ways(drawn(), run, chunks=40)


class Adapted(nn.Module):
    """A layer that is not trained, with a small trained one beside it, as LoRA has."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x):
        return torch.tanh(self.base(x) + self.up(self.down(x)))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, WIDTH)
        self.layers = nn.ModuleList(Adapted() for _ in range(12))
        self.head = nn.Linear(WIDTH, 300)
        for module in (self.table, self.head):
            module.requires_grad_(False)

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_frozen_weights_are_never_written_back():
    def make(model):
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)

    run = partial(train, data=batches(8))
    stats = both_ways(drawn(Frozen), run, make, gpu_memory=14 * GRANULE)
    frozen = stats.weight_bytes - stats.trained_bytes
    assert stats.iteration_bytes_in > frozen / 2
    # Trained weights lie apart; the pages at their ends are all that goes out beside them.
    assert stats.iteration_bytes_out <= stats.trained_bytes + stats.state_bytes + 2 * GRANULE


def test_a_model_on_meta_is_filled_by_load():
    torch.manual_seed(0)
    plain = Tower()
    source = {name: tensor.detach().clone() for name, tensor in plain.named_parameters()}
    with torch.device("meta"):
        model = Tower()
    model.head.weight = model.table.weight
    optimizer = adamw(model)
    want = train(plain, adamw(plain), batches(3))
    with page(model, optimizer, load=lambda name, to: to.copy_(source[name])):
        assert train(model, optimizer, batches(3)) == want
    assert same_weights(plain, model)


def by_func(model, x, tangent):
    return torch.func.jvp(model, (x,), (tangent,))


def by_dual_numbers(model, x, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(x, tangent)))


@pytest.mark.parametrize("derived", [by_func, by_dual_numbers])
@pytest.mark.parametrize("share", [0, 1])
def test_a_loss_of_forward_mode_derivatives(derived, share):
    """Backward reaches a layer's weights by the tangent that it made, too; they are not to stay."""

    def run(model, optimizer):
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(4):
            out, slope = derived(model, *torch.randn(2, 4, 2 * WIDTH, generator=generator))
            loss = share * out.square().mean() + slope.square().mean()
            losses.append(learn(optimizer, loss))
        return losses

    def make():
        linear = (nn.Linear(2 * WIDTH, 2 * WIDTH) for _ in range(8))
        return nn.Sequential(*[each for layer in linear for each in (layer, nn.Tanh())])

    stays = []
    stats = both_ways(
        drawn(make), run, chunks=10, meanwhile=lambda attached: stays.extend(attached.hooks.stays)
    )
    assert stats.iteration_page_loads > 0
    assert not stays


def test_nothing_is_left_behind():
    model, _ = pair()
    optimizer = adamw(model)
    attached = page(model, optimizer, step_in_backward=False)
    train(model, optimizer, batches(3))
    hooks = [len(module._forward_hooks) for module in model.modules()]
    device = attached.device
    counts = {}
    close = device.close
    device.close = lambda: (counts.update(device.live()), close())
    attached.detach()
    gc.collect()
    assert not any(counts[key] for key in ("ranges", "chunks", "mappings", "streams", "events"))
    assert any(hooks)
    assert not any(len(module._forward_hooks) for module in model.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_state_dict_post_hooks
