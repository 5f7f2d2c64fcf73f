# SPDX-License-Identifier: Apache-2.0
"""What training_budget.py trains: models of people's own kinds, their batches and budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from kit.measure import default_dtype
from torch import nn

Loss = Callable[[Any, Any], torch.Tensor]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
WORDS, LLAMA_WORDS, TINY_WORDS = 32128, 32000, 512


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


@dataclass(frozen=True)
class Job:
    """One model: how it is made, its loss, the shape of its batches, and the budgets.

    A budget in per cent is of what the resident run has at its peak.

    Attributes:
        half: Whether weights and state are bf16; else they are fp32, under autocast to bf16.
        words: How many different ones batches have.
        recomputes: Whether layers are checkpointed, so that weights and state are what moves.
    """

    make: Callable[[bool], nn.Module]
    loss: Loss
    shape: tuple[int, ...]
    tiny_shape: tuple[int, ...]
    optimizer: Optimizer
    budgets: tuple[str, ...]
    tiny_budgets: tuple[str, ...]
    half: bool = False
    recomputes: bool = False
    words: int = WORDS

    def batches(self, *, tiny: bool) -> list[torch.Tensor]:
        """The same two every time, on the host."""
        shape = self.tiny_shape if tiny else self.shape
        random = torch.Generator().manual_seed(1)
        if len(shape) == 2:
            words = TINY_WORDS if tiny else self.words
            return [torch.randint(0, words, shape, generator=random) for _ in range(2)]
        return [torch.randn(shape, generator=random) for _ in range(2)]


def t5(tiny: bool) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    large = {"d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16}
    small = {"d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    config = T5Config(
        **(small if tiny else large),
        vocab_size=TINY_WORDS if tiny else WORDS,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def convnext(tiny: bool) -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = [48, 96] if tiny else [192, 384, 768, 1536]
    config = ConvNextConfig(
        depths=[2, 2] if tiny else [3, 3, 27, 3],
        hidden_sizes=sizes,
        num_stages=len(sizes),
        num_labels=10 if tiny else 1000,
    )
    return ConvNextForImageClassification(config)


def vit(tiny: bool) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    small = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = ViTConfig(
        **(small if tiny else large),
        intermediate_size=384 if tiny else 4096,
        image_size=64 if tiny else 224,
        patch_size=8 if tiny else 16,
        num_labels=10 if tiny else 1000,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config)


class UNet(nn.Module):
    """Five sizes with two convolutions each way; what is made first is used last in forward too."""

    def __init__(self, width: int, sizes: int) -> None:
        super().__init__()
        widths = [width << n for n in range(sizes)]
        pairs = list(pairwise(widths))
        self.enter = self._two(3, width)
        self.down = nn.ModuleList(self._two(a, b) for a, b in pairs)
        self.wide = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(self._two(2 * a, a) for a, _ in pairs)
        self.leave = nn.Conv2d(width, 3, 1)

    def _two(self, before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(8, after),
            nn.SiLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.GroupNorm(8, after),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        kept = []
        for block in self.down:
            kept.append(x)
            x = block(nn.functional.max_pool2d(x, 2))
        for wide, up in zip(reversed(self.wide), reversed(self.up), strict=True):
            x = up(torch.cat([kept.pop(), wide(x)], 1))
        return self.leave(x)


def _language(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


def _classes(model: Any, images: torch.Tensor) -> torch.Tensor:
    kinds = torch.arange(len(images), device=images.device) % 10
    return nn.functional.cross_entropy(model(images).logits, kinds)


def _pixels(model: Any, images: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(images), images)


def llama(
    tiny: bool, width: int, hidden: int, layers: int, heads: int, pairs: int, words: int = 128256
) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128 if tiny else width,
        intermediate_size=256 if tiny else hidden,
        num_hidden_layers=3 if tiny else layers,
        num_attention_heads=4 if tiny else heads,
        num_key_value_heads=2 if tiny else pairs,
        vocab_size=TINY_WORDS if tiny else words,
        use_cache=False,
    )
    with default_dtype(torch.bfloat16):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def gpt2(tiny: bool, layers: int, width: int, heads: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4 if tiny else layers,
        n_embd=128 if tiny else width,
        n_head=4 if tiny else heads,
        vocab_size=TINY_WORDS if tiny else 50257,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def llama_8b_lora(tiny: bool) -> nn.Module:
    import peft

    model = llama(tiny, 4096, 14336, 32, 32, 8)
    model.enable_input_require_grads()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=targets))


def llama_3b(tiny: bool) -> nn.Module:
    return llama(tiny, 3072, 8192, 28, 24, 8)


def llama_7b(tiny: bool) -> nn.Module:
    return llama(tiny, 4096, 11008, 32, 32, 32, words=LLAMA_WORDS)


class Denoiser(nn.Module):
    """The U-Net of a latent diffusion model, at one step of noise and with one prompt."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        from diffusers import UNet2DConditionModel

        widths = (32, 64) if tiny else (320, 640, 1280, 1280)
        crossed = len(widths) - 1
        self.unet = UNet2DConditionModel(
            sample_size=16 if tiny else 64,
            block_out_channels=widths,
            down_block_types=("CrossAttnDownBlock2D",) * crossed + ("DownBlock2D",),
            up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * crossed,
            cross_attention_dim=32 if tiny else 768,
            attention_head_dim=8,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = self.unet.config.cross_attention_dim
        words = torch.ones(len(x), 77, width, device=x.device)
        noise = self.unet(x, torch.full((len(x),), 500, device=x.device), words).sample
        return noise  # type: ignore[no-any-return]


JOBS = {
    "llama_8b_lora": Job(
        llama_8b_lora, _language, (1, 1024), (2, 128), adamw, ("10GiB",), ("4MiB",),
        half=True, recomputes=True,
    ),
    "llama_3b_adamw": Job(
        llama_3b, _language, (4, 1024), (2, 128), adamw, ("16GiB", "10GiB"), ("5MiB", "4MiB"),
        half=True, recomputes=True,
    ),
    **{
        f"llama_7b_{batch}x1024": Job(
            llama_7b, _language, (batch, 1024), (2, 128), adamw, ("24GiB",), ("5MiB",),
            half=True, recomputes=True, words=LLAMA_WORDS,
        )
        for batch in (1, 8)
    },
    "t5_large_8x512": Job(t5, _language, (8, 512), (8, 128), adamw, ("8GiB",), ("40MiB",)),
    "convnext_l_sgd": Job(
        convnext, _classes, (64, 3, 224, 224), (16, 3, 128, 128), sgd, ("2GiB",), ("40MiB",)
    ),
    "vit_l": Job(vit, _classes, (64, 3, 224, 224), (32, 3, 64, 64), adamw, ("50%",), ("32MiB",)),
    "unet": Job(
        lambda tiny: UNet(16 if tiny else 64, 3 if tiny else 5),
        _pixels, (16, 3, 256, 256), (8, 3, 64, 64), adamw, ("50%",), ("24MiB",),
    ),
    "diffusers_unet": Job(
        Denoiser, _pixels, (8, 4, 64, 64), (4, 4, 16, 16), adamw, ("50%",), ("24MiB",)
    ),
    "gpt2_xl": Job(
        partial(gpt2, layers=48, width=1600, heads=25), _language, (8, 1024), (2, 128), adamw,
        ("16GiB", "12GiB", "9GiB"), ("8MiB", "6MiB"), recomputes=True,
    ),
    "gpt3_6.7b": Job(
        partial(gpt2, layers=32, width=4096, heads=32), _language, (8, 1024), (2, 128), adamw,
        ("40GiB",), ("6MiB",), recomputes=True,
    ),
}  # fmt: skip
