# SPDX-License-Identifier: Apache-2.0
"""attach_training(): activations that leave the device and come back, bit for bit.

Models of the kinds that people train, with random weights, at budgets where a step that keeps its
activations is out of memory. Tensors count in the emulated GPU's budget, so that one that stayed
too long would end the step.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn
from training_tower import both_ways, drawn, learn

from penstock import attach_training
from penstock.errors import OutOfMemory, UsageError
from penstock.paging.emulated_memory import EmulatedMemory
from penstock.paging.training import activations
from penstock.units import KIB, MIB

pytestmark = pytest.mark.usefixtures("small_blocks")

top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
STEPS = 4


class LateCopies(activations.Copies):
    """Copies that happen at the last moment at which a stream may do them.

    Until then there is garbage where they write: what reads it too early gets NaN.
    """

    pending: ClassVar[list[list]] = []

    def out(self, content, host, source):
        host.fill_(255)
        return self._later(host, content)

    def into(self, host, nbytes, written):
        assert written[2], "read before the copy out is known to be over"
        content, _ = super().into(host, nbytes, None)
        content.fill_(255)
        return content, self._later(content, host)

    def _later(self, to, source):
        self.pending.append([to, source, False])
        return self.pending[-1]

    def _now(self, copy):
        if not copy[2]:
            copy[0].copy_(copy[1])
            copy[0], copy[1], copy[2] = None, None, True
            self.pending.remove(copy)

    def wait(self, content, done):
        version = content._version
        self._now(done)
        torch._C._autograd._unsafe_set_version_counter((content,), (version,))

    def read(self, done):
        self._now(done)


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setattr(activations, "Copies", LateCopies)
    monkeypatch.setattr(LateCopies, "pending", [])
    return LateCopies.pending


def attach(model, optimizer, budget, **more):
    emulated = {"granularity": 64 * KIB, "capacity": 512 * MIB, "seed": 1, "max_delay_us": 20}
    return attach_training(
        model,
        optimizer,
        gpu_memory=budget,
        device="emulated",
        emulated=emulated,
        chunk_size=64 * KIB,
        look_ahead=128 * KIB,
        **more,
    )


# ---- Models ----------------------------------------------------------------------------------


def t5():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=160, d_model=64, d_kv=16, d_ff=256, num_layers=3, num_heads=4,
        decoder_start_token_id=0, dropout_rate=0.1,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    random = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, 160, (8, 64), generator=random) for _ in range(STEPS)]
    return model, [(lambda model, x=x: model(input_ids=x, labels=x).loss) for x in ids]


def classify(model, shape):
    random = torch.Generator().manual_seed(1)
    images = [torch.randn(shape, generator=random) for _ in range(STEPS)]
    kinds = torch.arange(shape[0]) % 10

    def loss_of(model, x):
        out = model(x)
        return nn.functional.cross_entropy(getattr(out, "logits", out), kinds)

    return model, [(lambda model, x=x: loss_of(model, x)) for x in images]


class ConvNextBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width) * 0.1)

    def forward(self, x):
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(nn.functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext():
    try:
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        sizes = [CNBlockConfig(24, 48, 2), CNBlockConfig(48, None, 2)]
        model = ConvNeXt(sizes, num_classes=10)
    except ImportError:
        model = nn.Sequential(
            nn.Conv2d(3, 24, 4, 4), *(ConvNextBlock(24) for _ in range(4)), nn.Conv2d(24, 48, 2, 2),
            *(ConvNextBlock(48) for _ in range(2)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(48, 10),
        )  # fmt: skip
    return classify(model, (8, 3, 64, 64))


def unet():
    class UNet(nn.Module):
        """What is saved first is used last, in forward too."""

        def __init__(self):
            super().__init__()
            sizes = [16, 32, 64]
            self.enter = nn.Conv2d(3, 16, 3, padding=1)
            self.down = nn.ModuleList(self.block(n, n) for n in sizes)
            self.narrow = nn.ModuleList(nn.Conv2d(n, 2 * n, 2, 2) for n in sizes[:-1])
            self.wide = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in sizes[:-1])
            self.up = nn.ModuleList(self.block(2 * n, n) for n in sizes[:-1])
            self.leave = nn.Conv2d(16, 10, 1)

        def block(self, before, after):
            return nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
            )

        def forward(self, x):
            x = self.enter(x)
            kept = []
            for number, block in enumerate(self.down):
                x = block(x)
                if number < len(self.narrow):
                    kept.append(x)
                    x = self.narrow[number](x)
            for number in reversed(range(len(self.up))):
                x = self.up[number](torch.cat([kept[number], self.wide[number](x)], 1))
            return self.leave(x).mean((2, 3))

    return classify(UNet(), (8, 3, 48, 48))


def vit():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=4, num_attention_heads=4, intermediate_size=192,
        image_size=64, patch_size=8, num_labels=10,
    )  # fmt: skip
    return classify(transformers.ViTForImageClassification(config), (8, 3, 64, 64))


# Budgets that weights, state and operators need about half of.
MODELS = {"t5": (t5, 12 * MIB), "convnext": (convnext, 9 * MIB), "unet": (unet, 9 * MIB)}
MODELS["vit"] = (vit, 4 * MIB)
OPTIMIZERS = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
}


def run(model, optimizer, losses):
    torch.manual_seed(7)
    got = []
    for loss_of in losses:
        loss = loss_of(model)
        got.append(learn(optimizer, loss))
    return got


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_with_room(name, optimizer):
    make, budget = MODELS[name]
    plain, losses = drawn(make)
    refused = copy.deepcopy(plain)
    third = OPTIMIZERS[optimizer](refused)
    with attach(refused, third, budget, activations="keep"), pytest.raises(OutOfMemory):
        run(refused, third, losses)
    stats = both_ways(
        plain, partial(run, losses=losses), OPTIMIZERS[optimizer], attach=attach, budget=budget
    )
    assert stats.activation_bytes_out >= stats.activation_bytes_in > 0
    assert stats.activation_bytes > stats.activation_bytes_in
    assert stats.activation_host_bytes >= stats.activation_bytes_out


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_copy_is_waited_for(name, late):
    make, budget = MODELS[name]
    plain, losses = drawn(make)

    def check(attached):
        assert not late  # of what has gone, nothing is on its way

    stats = both_ways(
        plain,
        partial(run, losses=losses),
        OPTIMIZERS["adamw"],
        attach=attach,
        meanwhile=check,
        budget=budget,
    )
    assert stats.activation_bytes_in > 0


def test_with_room_nothing_moves_and_nothing_is_hooked():
    torch.manual_seed(0)
    model, losses = convnext()
    optimizer = OPTIMIZERS["adamw"](model)
    hooked = []
    model.register_forward_hook(lambda *_: hooked.append(top_hooks(False) is not None))
    with attach(model, optimizer, 200 * MIB) as attached:
        for loss_of in losses:
            run(model, optimizer, [loss_of])
            stats = attached.stats()
            assert stats.activation_bytes_out == stats.activation_bytes_in == 0
        assert hooked == [True, False, False, False]
        assert stats.activation_host_bytes == 0
        # A larger input is not known to fit.
        kinds = torch.arange(16) % 10
        nn.functional.cross_entropy(model(torch.randn(16, 3, 64, 64)), kinds).backward()
        assert hooked[-1]


def test_tensors_from_before_the_attachment_take_none_of_its_room():
    """PyTorch's own figures have them; the budget has not."""
    held = EmulatedMemory.held

    def with_others(memory):
        return held(memory) + 100 * MIB

    torch.manual_seed(0)
    model, losses = unet()
    models, found = [model, copy.deepcopy(model)], []
    for paged, budget in zip(models, (64 * MIB, 9 * MIB), strict=True):
        optimizer = OPTIMIZERS["adamw"](paged)
        with attach(paged, optimizer, budget) as attached, pytest.MonkeyPatch.context() as patch:
            patch.setattr(EmulatedMemory, "held", with_others)
            patch.setattr(EmulatedMemory, "live", with_others)
            got = run(paged, optimizer, losses)
            found.append((got, attached.stats().activation_host_bytes > 0))
    assert found == [(got, False), (got, True)]


@pytest.mark.slow
def test_what_leaves_and_what_is_on_the_host_settles():
    torch.manual_seed(0)
    model, losses = vit()
    optimizer = OPTIMIZERS["adamw"](model)
    with attach(model, optimizer, 4 * MIB) as attached:
        moved = []
        for number in range(12):
            run(model, optimizer, [losses[number % STEPS]])
            stats = attached.stats()
            moved.append((stats.activation_bytes_out, stats.activation_host_bytes))
        assert len(set(moved[-4:])) == 1, moved
        # The peak is within the budget, and near it: what leaves has to.
        assert stats.activation_bytes_out < stats.activation_bytes
        assert attached.activations.saving.saved == 0


def test_batches_of_many_shapes():
    plain, _ = drawn(unet)
    random = torch.Generator().manual_seed(2)
    sizes = [(8, 48), (4, 48), (8, 32), (10, 48), (2, 16), (8, 48), (9, 48)]
    images = [torch.randn(n, 3, size, size, generator=random) for n, size in sizes]
    losses = [(lambda model, x=x: model(x).square().sum()) for x in images]
    both_ways(
        plain, partial(run, losses=losses), OPTIMIZERS["adamw"], attach=attach, budget=10 * MIB
    )


def test_an_unknown_choice_is_refused():
    model, _ = convnext()
    optimizer = OPTIMIZERS["sgd"](model)
    with pytest.raises(UsageError, match="activations='host' is unknown"):
        attach(model, optimizer, 200 * MIB, activations="host")


@pytest.mark.parametrize("more", [8, 24])  # less than is asked for at once, and than twice that
def test_host_memory_for_activations_is_checked(more):
    model, losses = t5()
    optimizer = OPTIMIZERS["sgd"](model)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    with (
        attach(model, optimizer, 12 * MIB, host_memory=weights + more * MIB),
        pytest.raises(OutOfMemory, match=f"and {more % 16}.00 MiB are available"),
    ):
        run(model, optimizer, losses)
