# SPDX-License-Identifier: Apache-2.0
"""attach_managed(): same bits, within the budget, and an ordinary model back.

On the emulated GPU, whose managed memory counts what is on the device; what a test asserts of it
is the emulated driver's own word, not the engine's.
"""

from __future__ import annotations

import copy

import pytest
import torch
from fault_tally import fail_in_turn
from interrupts import interrupted
from torch import nn

from penstock.errors import OutOfMemory, UsageError
from penstock.models.configs import get_config
from penstock.models.gpt import build_on_meta
from penstock.models.weights import load_model, synthetic_loader
from penstock.native import EMULATED, ON_HOST, Device, ManagedSet
from penstock.paging import attachments
from penstock.paging.blocks import collect_blocks, leave_tables_on_host
from penstock.paging.managed import attach_managed
from penstock.paging.managed.groups import form_groups
from penstock.units import KIB, MIB

GRANULE = 16 * KIB
CAPACITY = 8 * MIB


def manage(model, *, budget, capacity=CAPACITY, emulated=None, **more):
    options = {"granularity": GRANULE, "capacity": capacity, **(emulated or {})}
    return attach_managed(model, gpu_memory=budget, device="emulated", emulated=options, **more)


def on_device(attached):
    """Bytes on the device by the emulated driver's word; nothing but managed memory is there."""
    free, total = attached.device.memory()
    return total - free


class Stack(nn.Module):
    """Linear layers of 128 x 128 float32: 64.5 KiB of weights each, five granules."""

    def __init__(self, layers=8, width=128):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def sizes(attached):
    return attached.stats().managed_bytes, attached.stats().planned_bytes_in


# ---- The same bits, within the budget ------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("share", [0.55, 0.7, 1.3])
@pytest.mark.parametrize("eviction", ["collapse", "to_host"])
@torch.no_grad()
def test_logits_are_those_of_the_resident_model(dtype, share, eviction):
    config = get_config("tiny")
    load = synthetic_loader(config, 0)
    tokens = torch.arange(16).reshape(2, 8)
    resident = load_model(config, load, dtype=dtype)
    wanted = resident(tokens)
    model = build_on_meta(config, dtype=dtype)
    budget = int(share * sum(p.nbytes for p in resident.parameters()))
    most = []
    with manage(model, budget=budget, load=load, eviction=eviction) as attached:
        looks = [
            module.register_forward_hook(lambda *_: most.append(on_device(attached)))
            for module in model.modules()
        ]
        for _ in range(5):
            assert torch.equal(model(tokens), wanted)
        stats = attached.stats()
        assert stats.mismatches == 0
        assert stats.peak_device_bytes <= budget
        assert 0 < max(most) <= budget
        for look in looks:
            look.remove()
        total, planned = sizes(attached)
        if share > 1:
            assert stats.device_bytes == total == stats.bytes_in
            assert stats.evictions == stats.iteration_bytes_in == 0
            assert not attached.hooks.armed
        else:
            # Each layer once, then its part in every pass; the last may reach into a sixth.
            assert total < stats.bytes_in <= total + 5 * planned
            assert 0 < planned < total
            assert stats.bytes_out == (stats.evicted_bytes if eviction == "to_host" else 0)
    assert torch.equal(model(tokens), wanted)
    assert type(model.blocks[0].mlp.up.weight) is nn.Parameter


@pytest.mark.parametrize(("num_streams", "look_ahead"), [(0, 1), (1, 0), (2, 3), (5, 2)])
@torch.no_grad()
def test_random_delays_change_nothing(num_streams, look_ahead):
    torch.manual_seed(1)
    model = Stack().eval()
    x = torch.randn(2, 128)
    wanted = model(x)
    for seed in range(4):
        with manage(
            model,
            budget=16 * GRANULE,
            num_streams=num_streams,
            look_ahead_layers=look_ahead,
            max_in_flight=6 * GRANULE,
            emulated={"seed": seed, "max_delay_us": 400},
        ) as attached:
            for _ in range(4):
                assert torch.equal(model(x), wanted)
                assert on_device(attached) <= 16 * GRANULE


def armed_anew(attached):
    attached.hooks.disarm()
    attached.hooks.arm()  # hooks have the set's methods themselves


@pytest.mark.parametrize("call", ["begin", "end"])
@torch.no_grad()
def test_an_interrupt_may_come_while_a_use_begins_or_ends(call):
    model, x = Stack().eval(), torch.randn(1, 128)
    wanted = model(x)
    with manage(model, budget=16 * GRANULE) as attached:
        for number in range(8):
            with interrupted(attached.pager, call, number):
                armed_anew(attached)
                model(x)
            armed_anew(attached)
            for _ in range(2):
                assert torch.equal(model(x), wanted)


@torch.no_grad()
def test_every_layer_is_on_its_way_before_it_is_used():
    model = Stack().eval()
    x = torch.randn(1, 128)
    with manage(model, budget=24 * GRANULE) as attached:
        for _ in range(4):
            model(x)
        stats = attached.stats()
        assert stats.iteration_group_hits == stats.iteration_group_uses == 8
        assert stats.kept_groups < stats.groups == 8
        assert 0.0 < stats.hit_ratio < 1.0
        assert "waiting for pages" in attached.explain()


@torch.no_grad()
def test_tied_weights_and_views_stay_shared_and_buffers_are_not_managed():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(512, 64)
            self.norm = nn.BatchNorm1d(64)
            self.between = nn.Linear(64, 64)
            self.head = nn.Linear(64, 512, bias=False)
            self.head.weight = self.embedding.weight
            both = torch.randn(128, 64)
            self.first, self.second = nn.Parameter(both[:64]), nn.Parameter(both[64:])

        def forward(self, tokens):
            x = self.between(self.norm(self.embedding(tokens)))
            return self.head(x @ self.first + x @ self.second)

    model = Mixed().train()
    tokens = torch.arange(0, 512, 7)
    twin = copy.deepcopy(model)
    with manage(model, budget=24 * GRANULE) as attached:
        for _ in range(3):
            assert torch.equal(model(tokens), twin(tokens))  # and running statistics move on
        assert model.head.weight is model.embedding.weight
        both = model.first.untyped_storage().data_ptr()
        assert both == model.second.untyped_storage().data_ptr()
        assert attached.stats().groups == 4
        state = model.state_dict()
        assert torch.equal(state["norm.running_mean"], twin.norm.running_mean)
    assert model.norm.num_batches_tracked == 3
    for name, tensor in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
        assert torch.equal(state[name], tensor)


@torch.no_grad()
def test_a_module_used_twice_and_another_order_in_every_pass():
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(6))

        def forward(self, x, order):
            for index in order:
                x = torch.tanh(self.layers[index](x))
            return x

    model = Turns().eval()
    twin = copy.deepcopy(model)
    x = torch.randn(3, 128)
    with manage(model, budget=15 * GRANULE) as attached:
        for order in ([5, 3, 1, 3], [0, 1, 2, 3, 4, 5], [2], [], [4, 4, 4], [0, 1, 2, 3, 4, 5]):
            assert torch.equal(model(x, order), twin(x, order))
            assert on_device(attached) <= 15 * GRANULE
        assert attached.stats().mismatches > 0


# ---- On demand -----------------------------------------------------------------------------------


@torch.no_grad()
def test_without_prefetch_the_driver_is_left_alone():
    model = Stack().eval()
    x = torch.randn(1, 128)
    wanted = model(x)
    with manage(model, budget=2 * GRANULE, prefetch=False) as attached:
        for _ in range(2):
            assert torch.equal(model(x), wanted)
        assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.layers)
        assert attached.device.live()["managed_allocations"] == 8
        assert attached.device.live()["events"] == attached.device.live()["streams"] == 0
        assert on_device(attached) == attached.stats().bytes_in == 0
        assert attached.stats().hit_ratio == 0.0
        assert "on demand" in attached.explain()
    assert torch.equal(model(x), wanted)


# ---- Refusals ------------------------------------------------------------------------------------


def refused(model, error, match, **options):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(error, match=match) as raised:
        manage(model, **options)
    assert attachments() == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    return raised.value


def test_too_little_memory_is_refused_with_numbers_and_a_remedy():
    model = Stack()
    error = refused(model, OutOfMemory, "smallest that works", budget=9 * GRANULE)
    assert "160 KiB" in str(error)
    assert error.needed_bytes == 10 * GRANULE
    error = refused(model, OutOfMemory, "oversubscribe", budget=20 * GRANULE, capacity=30 * GRANULE)
    assert "allow_oversubscription" in str(error)
    assert error.needed_bytes == 40 * GRANULE
    refused(model, OutOfMemory, "exceeds", budget=41 * GRANULE, capacity=40 * GRANULE)
    refused(
        model, OutOfMemory, "oversubscribe", budget=GRANULE, capacity=30 * GRANULE, prefetch=False
    )
    refused(model, OutOfMemory, "host memory", budget=20 * GRANULE, host_memory="100KiB")


@torch.no_grad()
def test_oversubscription_is_possible_where_it_is_allowed():
    model = Stack().eval()
    x = torch.randn(1, 128)
    wanted = model(x)
    with manage(
        model, budget=20 * GRANULE, capacity=30 * GRANULE, allow_oversubscription=True
    ) as attached:
        for _ in range(3):
            assert torch.equal(model(x), wanted)
            assert on_device(attached) <= 20 * GRANULE


def test_arguments_that_make_no_sense_are_refused():
    model = Stack()
    refused(model, UsageError, "eviction", budget=20 * GRANULE, eviction="lru")
    refused(model, UsageError, "below 0", budget=20 * GRANULE, num_streams=-1)
    refused(model, UsageError, "64 or fewer", budget=20 * GRANULE, num_streams=65)
    refused(model, UsageError, "below 0", budget=20 * GRANULE, look_ahead_layers=-1)
    refused(model, UsageError, "ReadMostly", budget=20 * GRANULE, read_mostly=False)
    refused(nn.Tanh(), UsageError, "no parameters", budget=20 * GRANULE)
    with torch.device("meta"):
        empty = Stack()
    with pytest.raises(UsageError, match="meta"):
        manage(empty, budget=20 * GRANULE)
    with manage(model, budget=20 * GRANULE):
        with pytest.raises(UsageError, match="attached already"):
            manage(model, budget=20 * GRANULE)
        with pytest.raises(UsageError, match="inference only"):
            model(torch.randn(1, 128))
        with pytest.raises(UsageError, match="state_dict"):
            model.load_state_dict(model.state_dict())


def test_a_loader_that_fails_leaves_nothing_behind():
    config = get_config("tiny")
    load = synthetic_loader(config, 0)
    calls = []

    def failing(name, destination):
        calls.append(name)
        if len(calls) == 9:
            raise RuntimeError("no more")
        load(name, destination)

    model = build_on_meta(config)
    with pytest.raises(RuntimeError, match="no more"):
        manage(model, budget=600 * KIB, load=failing)
    assert attachments() == []


@torch.no_grad()
def test_a_failure_at_any_driver_call_is_clean():
    model = Stack(layers=5).eval()
    x = torch.randn(1, 128)
    wanted = model(x)

    def life(fail_at_call):
        emulated = {"fail_at_call": fail_at_call}
        try:
            with manage(model, budget=15 * GRANULE, num_streams=1, emulated=emulated) as attached:
                for _ in range(2):
                    assert torch.equal(model(x), wanted)
                return attached.device.driver_calls()
        finally:
            assert attachments() == []
            assert torch.equal(model(x), wanted)

    calls = life(0)
    assert calls > 50
    says = "injected failure"
    assert fail_in_turn("attach_managed()", life, calls, says=says) > calls // 2


@torch.no_grad()
def test_an_interrupted_pass_harms_nothing(monkeypatch):
    model = Stack().eval()
    x = torch.randn(1, 128)
    wanted = model(x)
    with manage(model, budget=16 * GRANULE):
        with monkeypatch.context() as patch:

            def interrupt(*_):
                raise KeyboardInterrupt

            patch.setattr(model.layers[3], "forward", interrupt)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    model(x)
        for _ in range(3):
            assert torch.equal(model(x), wanted)
    assert torch.equal(model(x), wanted)


# ---- Groups --------------------------------------------------------------------------------------


class Nested(nn.Module):
    """Two stacks of the same class of block, lists inside the blocks, and a list of its own."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(7))
            self.register_buffer("mask", torch.ones(8))

        def forward(self, x):
            return x

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20000, 8)
        self.encoder = nn.ModuleList(Nested.Block() for _ in range(9))
        self.decoder = nn.ModuleList(Nested.Block() for _ in range(2))
        self.holders = nn.ModuleList(nn.ModuleList([nn.Linear(8, 8)]) for _ in range(30))
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 20000)


def test_transformer_blocks_are_groups_and_so_is_every_other_owner():
    model = Nested()
    groups = form_groups(model, collect_blocks(model))
    names = [group.name for group in groups.groups]
    blocks = [f"encoder.{i}" for i in range(9)] + [f"decoder.{i}" for i in range(2)]
    assert names == ["", "table", *blocks, *(f"holders.{i}.0" for i in range(30)), "head"]
    assert [len(group.blocks) for group in groups.groups] == [1, 1] + [14] * 11 + [2] * 31
    assert all(groups.names[user] == names[used[0]] for user, used in groups.uses.items())
    assert len(groups.uses) == len(names)
    assert [block.name for block in groups.others] == [f"{name}.mask" for name in blocks]


def test_tables_on_the_host_have_no_uses():
    model = Nested()
    blocks = collect_blocks(model)
    leave_tables_on_host(blocks)
    groups = form_groups(model, blocks)
    assert [group.name for group in groups.groups if group.on_host] == ["table"]
    assert model.table not in groups.uses


def test_a_closed_set_refuses_further_use():
    with Device(EMULATED, capacity=CAPACITY, granularity=GRANULE) as device:
        managed = ManagedSet(device, [(1, 0), (2 * GRANULE, 0), (5, ON_HOST)], budget=CAPACITY)
        assert len(set(managed.addresses)) == 3
        managed.iteration()
        managed.begin(1)
        managed.end(1)
        assert managed.stats()["device_bytes"] == 3 * GRANULE
        assert managed.smallest() == 3 * GRANULE
        with pytest.raises(UsageError, match="stays on the host"):
            managed.begin(2)
        managed.close()
        managed.close()
        assert device.live()["managed_allocations"] == 0
        for call in (managed.iteration, managed.stats, managed.smallest):
            with pytest.raises(UsageError, match="freed"):
                call()
        with pytest.raises(UsageError, match="flags"):
            ManagedSet(device, [(1, 7)], budget=CAPACITY)
