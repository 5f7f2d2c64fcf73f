# SPDX-License-Identifier: Apache-2.0
"""attach() of several models: one attachment, one budget, whichever of them runs.

A list, a dict, or any object that holds modules, such as a pipeline. Whatever is called of them is
a pass: the root, a part of it, or a method that is not forward.
"""

from __future__ import annotations

import copy

import pytest
import torch
from attach_models import PAGE, page, rows, stack
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from penstock.errors import OutOfMemory, UsageError
from penstock.paging import attachments
from penstock.units import KIB

pytestmark = pytest.mark.usefixtures("no_grad")

BUDGET = 120  # KiB; a stack of eight layers has 130


class Coder(nn.Module):
    """Has two ways in beside forward, as autoencoders and text models do."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = stack(6), stack(6)

    def encode(self, x):
        return torch.tanh(self.encoder(x))

    def decode(self, x):
        return self.decoder(torch.tanh(x))

    def forward(self, x):
        return self.decode(self.encode(x))


class Pipeline:
    """Holds modules as attributes beside other things, and calls them; is no module itself."""

    def __init__(self):
        self.text_encoder, self.unet, self.vae = stack(6), stack(8), Coder().eval()
        self.scheduler = {"steps": 3}
        self.name = "a pipeline"

    def __call__(self, x):
        x = torch.tanh(self.text_encoder(x))
        for _ in range(self.scheduler["steps"]):
            x = torch.tanh(self.unet(x))
        return self.vae.decode(x)


class Components(Pipeline):
    """Names what it holds in `components`, as a diffusers pipeline does."""

    @property
    def components(self):
        own = ("text_encoder", "unet", "vae", "scheduler")
        return {name: getattr(self, name) for name in own}


def came_ahead(attached, run):
    """Whether some pages of a run come before they are asked for, which only a plan can do."""
    before = attached.stats()
    run()
    after = attached.stats()
    moved, demanded = (
        getattr(after, key) - getattr(before, key) for key in ("bytes_in", "demanded_pages")
    )
    return moved > demanded * PAGE


def check_within(attached, kib=BUDGET):
    stats = attached.stats()
    assert stats.peak_device_bytes <= kib * KIB
    assert stats.gpu_memory_bytes == kib * KIB


# ---- Several at once -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
def test_models_of_a_list_share_one_budget(count):
    models = [stack(8) for _ in range(count)]
    references = copy.deepcopy(models)
    with page(models, BUDGET) as attached:
        assert attachments() == [attached]
        for seed in range(4):
            for model, reference in zip(models, references, strict=True):
                assert torch.equal(model(rows(seed=seed)), reference(rows(seed=seed)))
        assert attached.stats().passes == 4 * count
        assert attached.weight_bytes == sum(p.nbytes for m in models for p in m.parameters())
        check_within(attached)
    assert not attachments()
    for model, reference in zip(models, references, strict=True):
        assert torch.equal(model(rows()), reference(rows()))


def test_models_of_a_dict_go_by_their_names():
    models = {"first": stack(8), "second": stack(8)}
    references = copy.deepcopy(models)
    with page(models, BUDGET) as attached:
        for name, model in models.items():
            assert torch.equal(model(rows()), references[name](rows()))
        check_within(attached)
    assert set(models) == {"first", "second"}


def test_a_loader_is_given_names_that_tell_models_apart():
    references = {"first": stack(8), "second": stack(4)}
    content = {
        f"{name}.{key}": tensor
        for name, model in references.items()
        for key, tensor in model.state_dict().items()
    }
    models = {name: copy.deepcopy(model).to("meta") for name, model in references.items()}
    loaded = []

    def load(name, destination):
        loaded.append(name)
        destination.copy_(content[name])

    with page(models, BUDGET, load=load):
        for name, model in models.items():
            assert torch.equal(model(rows()), references[name](rows()))
    assert sorted(loaded) == sorted(content)


@pytest.mark.parametrize("order", [(0, 1), (0, 0, 1, 1), (1, 0, 0, 1, 0)])
def test_any_order_of_models_is_right(order):
    models = [stack(8), stack(6)]
    references = copy.deepcopy(models)
    with page(models, BUDGET) as attached:
        for seed in range(4):
            for number in order:
                want = references[number](rows(seed=seed))
                assert torch.equal(models[number](rows(seed=seed)), want)
        check_within(attached)


def test_one_that_does_not_run_gives_its_room_to_the_other():
    first, second = stack(8), stack(8)
    with page([first, second], 150) as attached:  # either fits by itself
        second(rows())
        for _ in range(6):
            first(rows())
        before = attached.stats().bytes_in
        for _ in range(3):
            first(rows())
        assert attached.stats().bytes_in == before


def test_models_that_share_a_weight_share_its_block():
    first, second = stack(8), stack(8)
    second[3].weight = first[3].weight
    references = copy.deepcopy([first, second])
    with page([first, second], BUDGET) as attached:
        own = {id(p): p.nbytes for m in (first, second) for p in m.parameters()}
        assert attached.weight_bytes == sum(own.values())
        for model, reference in zip((first, second), references, strict=True):
            assert torch.equal(model(rows()), reference(rows()))
    assert second[3].weight is first[3].weight


def test_what_cannot_be_attached_leaves_all_of_them_alone():
    first, second = stack(8), torch.jit.script(stack(2))
    with pytest.raises(UsageError):
        page([first, second], BUDGET)
    assert torch.equal(first(rows()), stack(8)(rows()))
    assert not attachments()
    with page(first):  # it can be attached by itself afterwards
        pass


@pytest.mark.parametrize("nothing", [[], {}, [1, 2], {"x": None}, object()])
def test_nothing_to_attach_is_said(nothing):
    with pytest.raises(UsageError):
        page(nothing, BUDGET)


def test_the_same_model_twice_is_attached_once():
    model = stack(8)
    reference = copy.deepcopy(model)
    with page([model, model], 80) as attached:
        assert attached.weight_bytes == sum(p.nbytes for p in model.parameters())
        assert torch.equal(model(rows()), reference(rows()))


# ---- Objects that hold modules -------------------------------------------------------------


@pytest.mark.parametrize("kind", [Pipeline, Components])
def test_an_object_that_holds_modules(kind):
    pipe = kind()
    reference = copy.deepcopy(pipe)
    with page(pipe, BUDGET) as attached:
        for seed in range(4):
            assert torch.equal(pipe(rows(seed=seed)), reference(rows(seed=seed)))
        assert attached.stats().passes >= 4 * 5  # text, three of the unet, one of the decoder
        assert came_ahead(attached, lambda: pipe(rows()))
        check_within(attached)
    assert torch.equal(pipe(rows()), reference(rows()))
    assert pipe.scheduler == {"steps": 3}


def test_diffusers_pipeline_by_its_components():
    diffusers = pytest.importorskip("diffusers")
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(32,), latent_channels=4, norm_num_groups=8, sample_size=16
    )
    text = CLIPTextModel(
        CLIPTextConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=100,
            bos_token_id=0,
            eos_token_id=2,
        )
    )
    pipe = diffusers.StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text.eval(),
        tokenizer=None,
        unet=unet.eval(),
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)

    def run():
        return pipe(
            prompt_embeds=torch.ones(1, 7, 32),
            negative_prompt_embeds=torch.zeros(1, 7, 32),
            num_inference_steps=3,
            height=8 * pipe.vae_scale_factor,
            width=8 * pipe.vae_scale_factor,
            output_type="pt",
            generator=torch.Generator().manual_seed(0),
        ).images

    want = run()
    weight = sum(p.nbytes for part in (unet, vae, text) for p in part.parameters())
    with page(pipe, weight // 2 // KIB) as attached:
        assert torch.equal(run(), want)
        assert torch.equal(run(), want)
        assert attached.stats().passes >= 2 * 4
        assert attached.stats().peak_device_bytes <= attached.budget
    assert torch.equal(run(), want)


# ---- Every way in is a pass ----------------------------------------------------------------


@pytest.mark.parametrize(
    "way",
    [
        lambda model: model.encode,
        lambda model: model.decode,
        lambda model: model.encoder,
        lambda model: model.decoder[2],
        lambda model: model,
    ],
    ids=["encode", "decode", "a part", "a layer", "the root"],
)
def test_every_way_in_counts_and_gets_a_plan(way):
    model = Coder().eval()
    reference = copy.deepcopy(model)
    with page(model, 64) as attached:  # a half of it has 98
        for seed in range(6):
            want = way(reference)(rows(seed=seed))
            assert torch.equal(way(model)(rows(seed=seed)), want)
        assert attached.stats().passes == 6
        before = attached.stats()
        way(model)(rows())
        after = attached.stats()
    assert after.demanded_pages == before.demanded_pages


def test_ways_in_take_turns():
    model = Coder().eval()
    reference = copy.deepcopy(model)
    with page(model, 64) as attached:
        for seed in range(6):
            for way in ("encode", "decode", "forward", "encoder"):
                want = getattr(reference, way)(rows(seed=seed))
                assert torch.equal(getattr(model, way)(rows(seed=seed)), want)
        # forward(), unlike a call of the model, is its two parts.
        assert attached.stats().passes == 6 * 5
        assert attached.stats().peak_device_bytes <= attached.budget


def test_a_pass_within_a_pass_counts_once():
    model = Coder().eval()
    with page(model, 64) as attached:
        model(rows())  # which calls encode, decode and what they hold
        assert attached.stats().passes == 1


def test_a_way_in_that_raises_ends_its_pass():
    model = Coder().eval()
    reference = copy.deepcopy(model)
    with page(model, 64) as attached:
        with pytest.raises(RuntimeError):
            model.encode(torch.ones(2, 3))
        for seed in range(3):
            assert torch.equal(model.encode(rows(seed=seed)), reference.encode(rows(seed=seed)))
        assert attached.stats().passes >= 3


def test_a_way_in_that_finds_no_room_ends_its_pass():
    model = Coder().eval()
    model.head = nn.Linear(64, 400)
    reference = copy.deepcopy(model)
    with page(model, BUDGET) as attached:
        kept = model.encoder(rows(160))
        passes = attached.stats().passes
        with pytest.raises(OutOfMemory):
            model.head(rows())
        assert _get_current_dispatch_mode_stack() == []
        assert attached.stats().passes == passes + 1
        del kept
        assert torch.equal(model.head(rows()), reference.head(rows()))
        assert attached.stats().passes == passes + 2
