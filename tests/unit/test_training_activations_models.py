# SPDX-License-Identifier: Apache-2.0
"""Models whose ways with memory differ, trained where half or a quarter of their tensors leave.

No budget is chosen for a model: each follows from what its tensors take with room. Losses, weights
and gradients, kept since the loop looks at them, are those of plain training, bit for bit.
"""

from __future__ import annotations

import copy

import pytest
import torch
from deep_layers import dead_references
from torch import nn
from training_tower import same_weights

from penstock import attach_training
from penstock.units import KIB, MIB

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("small_blocks")

STEPS, WORDS = 4, 160
LOOK_AHEAD = 128 * KIB


def batches(*shapes):
    """For each step a tensor of each shape; those of whole numbers are words."""
    random = torch.Generator().manual_seed(1)
    return [
        [
            torch.randint(WORDS, shape, generator=random)
            if len(shape) == 2
            else torch.randn(shape, generator=random)
            for shape in shapes
        ]
        for _ in range(STEPS)
    ]


def language(model):
    return model, lambda model, ids: model(input_ids=ids, labels=ids).loss, batches((8, 64))


def llama_with_lora():
    """Frozen weights are read in backward too; adapters are dropped out."""
    peft = pytest.importorskip("peft")
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=192, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    targets = ["q_proj", "v_proj", "down_proj"]
    adapters = peft.LoraConfig(r=4, target_modules=targets, lora_dropout=0.1)
    return language(peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters))


def mixture_of_experts():
    """Which experts a token goes to is seen in the middle of forward; sizes vary."""
    config = transformers.MixtralConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
        output_router_logits=True,
    )  # fmt: skip
    return language(transformers.MixtralForCausalLM(config))


def segmentation():
    """What operators need grows towards the end: all scales are enlarged and joined there."""
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[2, 2], sr_ratios=[4, 2], hidden_sizes=[16, 32],
        patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[4, 4],
        decoder_hidden_size=64, num_labels=5,
    )  # fmt: skip

    def loss(model, images):
        kinds = torch.arange(96 * 96).reshape(96, 96) % 5
        return model(pixel_values=images, labels=kinds.expand(len(images), -1, -1)).loss

    return transformers.SegformerForSemanticSegmentation(config), loss, batches((4, 3, 96, 96))


def recurrent():
    """One operator of all layers, with weights that its module holds flattened."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(WORDS, 64)
            self.cells = nn.LSTM(64, 96, 3, batch_first=True, dropout=0.2)
            self.head = nn.Linear(96, WORDS)

        def forward(self, ids):
            return self.head(self.cells(self.table(ids))[0])

    def loss(model, ids):
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    return Recurrent(), loss, batches((8, 64))


def has_bf16_cells():
    with torch.autocast("cpu", torch.bfloat16):
        try:
            nn.LSTM(8, 8)(torch.zeros(1, 1, 8))
        except RuntimeError:
            return False
    return True


class Residual(nn.Module):
    def __init__(self, before, after, times=64):
        super().__init__()
        self.first, self.second = nn.GroupNorm(4, before), nn.GroupNorm(4, after)
        self.enter = nn.Conv2d(before, after, 3, padding=1)
        self.leave = nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(times, after)
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, x, time):
        y = self.enter(nn.functional.silu(self.first(x)))
        y = y + self.time(nn.functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.leave(nn.functional.silu(self.second(y)))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.all = nn.GroupNorm(4, width), nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def forward(self, x):
        rows = self.all(self.norm(x).flatten(2).transpose(1, 2)).unflatten(2, (3, 4, -1))
        y = nn.functional.scaled_dot_product_attention(*rows.permute(2, 0, 3, 1, 4))
        return x + self.leave(y.transpose(1, 2).flatten(2)).transpose(1, 2).view_as(x)


class Diffusion(nn.Module):
    """A U-Net as those of diffusers: attention, steps of noise, and skips from far away."""

    def __init__(self):
        super().__init__()
        widths = [(16, 32), (32, 64)]
        self.time, self.enter = nn.Linear(16, 64), nn.Conv2d(3, 16, 3, padding=1)
        self.down = nn.ModuleList(
            nn.ModuleList([Residual(a, a), Attention(a), nn.Conv2d(a, b, 3, 2, 1)])
            for a, b in widths
        )
        self.middle = Residual(64, 64)
        self.up = nn.ModuleList(
            nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2), Residual(2 * a, a)])
            for a, b in reversed(widths)
        )
        self.leave = nn.Conv2d(16, 3, 1)

    def forward(self, x, time):
        time = self.time(torch.sin(time * torch.arange(16.0)))
        x, kept = self.enter(x), []
        for residual, attention, smaller in self.down:
            kept.append(attention(residual(x, time)))
            x = smaller(kept[-1])
        x = self.middle(x, time)
        for larger, residual in self.up:
            x = residual(torch.cat([larger(x), kept.pop()], 1), time)
        return self.leave(x)


def diffusion():
    def loss(model, images, noise, times):
        times = times.reshape(-1, 1)
        return nn.functional.mse_loss(model(images + noise * times[:, :, None, None], times), noise)

    return Diffusion(), loss, batches((6, 3, 32, 32), (6, 3, 32, 32), (6, 1, 1))


MODELS = [
    llama_with_lora,
    mixture_of_experts,
    recurrent,
    *(pytest.param(make, marks=pytest.mark.slow) for make in (segmentation, diffusion)),
]


def make_optimizer(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def attach(model, optimizer, budget, **more):
    emulated = {"granularity": 64 * KIB, "capacity": 512 * MIB, "seed": 1, "max_delay_us": 20}
    sizes = {"chunk_size": 64 * KIB, "look_ahead": LOOK_AHEAD}
    return attach_training(
        model, optimizer, gpu_memory=budget, device="emulated", emulated=emulated, **sizes, **more
    )


def train(model, optimizer, loss_of, data, *, autocast):
    torch.manual_seed(7)
    seen = []
    for batch in data:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, *batch)
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        seen.append((loss.item(), [(gradient + 0).numpy().tobytes() for gradient in gradients]))
        optimizer.step()
        optimizer.zero_grad()
    return seen


@pytest.mark.parametrize(
    "autocast",
    [pytest.param(False, id="fp32"), pytest.param(True, id="autocast", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_losses_gradients_and_weights(make, autocast, at_step_ends):
    if make is recurrent and autocast and not has_bf16_cells():
        pytest.skip("this processor has no LSTM in bfloat16")
    moved = at_step_ends(lambda saving: saving.bytes_in)
    torch.manual_seed(0)
    plain, loss_of, data = make()
    roomy, *others = (copy.deepcopy(plain) for _ in range(3))
    want = train(plain, make_optimizer(plain), loss_of, data, autocast=autocast)
    optimizer = make_optimizer(roomy)
    with attach(roomy, optimizer, 256 * MIB, activations="keep") as attached:
        train(roomy, optimizer, loss_of, data[:2], autocast=autocast)
        tensors = attached.manager.budget.shares().others_peak
        least = attached.pager.smallest() + LOOK_AHEAD
    for share, paged in zip((0.75, 0.5), others, strict=True):
        optimizer = make_optimizer(paged)
        with attach(paged, optimizer, least + int(tensors * share)):
            moved.clear()
            assert train(paged, optimizer, loss_of, data, autocast=autocast) == want
        assert sum(moved) > 0  # in the end weights may make all the room
        assert same_weights(plain, paged)


@pytest.mark.slow
def test_many_steps_of_random_shapes_neither_fail_nor_grow():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=64, d_kv=16, d_ff=256, num_layers=3, num_heads=4,
        decoder_start_token_id=0, dropout_rate=0.0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    random = torch.Generator().manual_seed(2)

    def step(rows, words):
        ids = torch.randint(WORDS, (rows, words), generator=random)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    roomy, model = model, copy.deepcopy(model)
    optimizer = make_optimizer(model)
    with attach(model, optimizer, 256 * MIB, activations="keep") as attached:
        for _ in range(2):
            step(8, 96)
        tensors = attached.manager.budget.shares().others_peak
        budget = attached.pager.smallest() + LOOK_AHEAD + tensors // 2
    model, optimizer = roomy, make_optimizer(roomy)
    with attach(model, optimizer, budget) as attached:
        host, references = [], []
        for number in range(120):
            rows, words = (int(torch.randint(8, (), generator=random)) + 1 for _ in range(2))
            step(rows, 12 * words)
            if number % 40 == 39:
                step(8, 96)
                host.append(attached.stats().activation_host_bytes)
                references.append(dead_references())
                assert attached.activations.saving.saved == 0
        assert attached.stats().activation_bytes_in > 0
    assert host[-1] == host[0]
    assert references[-1] <= references[0] + 100
