# SPDX-License-Identifier: Apache-2.0
"""Whole pipelines of diffusers for beside_peers.py: a picture, from its text on.

FLUX.1 [schnell] in its published shape, with random weights that follow from their names, and
tokenizers that are made here: nothing is fetched from anywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from kit.card import Card
from torch import nn

from models import shapes
from models.cases import Case, Steps
from models.held_out import of_shape
from models.shapes import Shape, decoder, text

PROMPT = "a narrow canal in the evening, two boats, and a lock keeper who reads by the light"
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
VAE = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "force_upcast": False,
}
# By the names of the pipeline's components.
SHAPES = {
    "text_encoder": Shape(
        "CLIPTextModel",
        "CLIPTextConfig",
        {
            **decoder(768, 12, 12, 3072, 49408),
            "projection_dim": 768,
            "max_position_embeddings": 77,
            **TOKENS,
        },
        text,
        small=TOKENS,
    ),
    "text_encoder_2": Shape(
        "T5EncoderModel",
        "T5Config",
        {
            "d_model": 4096,
            "d_kv": 64,
            "d_ff": 10240,
            "num_layers": 24,
            "num_heads": 64,
            "feed_forward_proj": "gated-gelu",
            "vocab_size": 32128,
        },
        text,
    ),
    "transformer": shapes.SHAPES["flux"],
    "vae": Shape(
        "AutoencoderKL",
        None,
        {
            "block_out_channels": (128, 256, 512, 512),
            "layers_per_block": 2,
            "latent_channels": 16,
            "sample_size": 1024,
            **VAE,
        },
        text,
        small={
            "block_out_channels": (32, 32, 64, 64),
            "layers_per_block": 1,
            "latent_channels": 4,
            "sample_size": 64,
            **VAE,
        },
    ),
}


def tokenizer(length: int) -> Any:
    """One that knows the words of the prompt."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    splitter = Whitespace()
    words = dict.fromkeys(word for word, _ in splitter.pre_tokenize_str(PROMPT))
    numbers = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    inner = Tokenizer(WordLevel(numbers, unk_token="<unk>"))
    inner.pre_tokenizer = splitter
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=length,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def assemble(models: dict[str, nn.Module]) -> Any:
    """The pipeline of these models."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        tokenizer=tokenizer(77),
        tokenizer_2=tokenizer(512),
        **models,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def flux_pipeline(card: Card, *, steps: int, size: int) -> Case:
    """A picture of `size` pixels a side in so many steps."""
    made = {name: of_shape(name, shape, small=card.small) for name, shape in SHAPES.items()}
    size, words = (64, 32) if card.small else (size, 512)

    def resident() -> Any:
        return assemble({name: one.resident(card.device) for name, one in made.items()})

    def fresh() -> tuple[Any, Any]:
        loads = {name: one.loader(card.device) for name, one in made.items()}

        def load(name: str, destination: torch.Tensor) -> None:
            component, _, rest = name.partition(".")
            loads[component](rest, destination)

        return assemble({name: one.build("meta") for name, one in made.items()}), load

    def picture(pipe: Any) -> Any:
        return pipe(
            PROMPT,
            height=size,
            width=size,
            num_inference_steps=steps,
            guidance_scale=0.0,
            max_sequence_length=words,
            generator=torch.Generator(card.device).manual_seed(0),
            output_type="pt",
        )

    def run(pipe: Any) -> Steps:
        return {f"flux picture {size}, {steps} steps": lambda: picture(pipe)}

    def parts(pipe: Any) -> list[nn.Module]:
        """The autoencoder is never called itself: only its decoder is."""
        return [
            pipe.text_encoder,
            pipe.text_encoder_2,
            pipe.transformer,
            pipe.vae.decoder,
            pipe.vae.encoder,
        ]

    return Case("flux-pipeline", resident, fresh, run, parts)
