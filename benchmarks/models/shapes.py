# SPDX-License-Identifier: Apache-2.0
"""What the models of models/held_out.py are, in two sizes, and what a pass of each takes.

The large ones are published: Llama-3-8B and 70B, Qwen2-1.5B, Gemma-2B, Phi-2, OPT-1.3B, BLOOM-1b7,
Mamba-1.4B, T5 v1.1 XL, BERT-large, DeepSeek-V2-Lite, ViT-g/14, CLIP ViT-bigG/14, Whisper large-v3,
the UNet of SDXL, FLUX.1, and the transformers of Qwen-Image (1,024 pixels a side) and Wan 2.1 14B
(33 frames of 480 x 832); "llama-medium" is nobody's, and the other mixtures of experts have fewer
layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from models.little import sizes_of

# (configuration, batch, length) -> tensors on the CPU, and what else a pass takes.
Inputs = Callable[[Any, int, int], dict[str, Any]]


class Shape(NamedTuple):
    """An architecture: its classes, its two sizes, what a pass takes, whether it generates.

    Attributes:
        model: The class of transformers or diffusers.
        config: The class of its configuration, or None where the model itself takes the keywords.
        full: Keywords of the large one.
        inputs: Makes what a pass takes.
        generates: Whether generate() makes tokens.
        small: Keywords of the small one, where little.py does not say them.
    """

    model: str
    config: str | None
    full: dict[str, Any]
    inputs: Inputs
    generates: bool = False
    small: dict[str, Any] | None = None

    def little(self) -> dict[str, Any]:
        """Keywords of the small one, all of them."""
        small = self.small or {}
        if self.config is None:
            return small
        import transformers

        config = getattr(transformers, self.config)(**self.full)
        return {**self.full, **sizes_of(config), **small}


# ---- What a pass takes -------------------------------------------------------------------------
# The same arguments give the same inputs. Length is that of a text, and means nothing to a model
# that takes images alone.


def text(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * 100_003 + length)
    ids = torch.randint(3, config.vocab_size, (batch, length), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def text_alone(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": text(config, batch, length)["input_ids"]}


def encoder_decoder(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    inputs = text(config, batch, length)
    return {**inputs, "decoder_input_ids": inputs["input_ids"][:, : max(1, length // 4)]}


def image(config: Any, batch: int, _: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": noise(batch, 3, config.image_size, config.image_size)}


def text_and_image(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    length = min(length, config.text_config.max_position_embeddings)
    return {**text(config.text_config, batch, length), **image(config.vision_config, batch, 0)}


def sound(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    ids = text(config, batch, max(1, length // 8))["input_ids"]
    frames = noise(batch, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": frames, "decoder_input_ids": ids}


def latents(config: Any, batch: int, length: int) -> dict[str, Any]:
    pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
    size = config.sample_size
    return {
        "sample": noise(batch, config.in_channels, size, size),
        "timestep": torch.tensor(500),
        "encoder_hidden_states": noise(batch, 77, config.cross_attention_dim),
        "added_cond_kwargs": {"text_embeds": noise(batch, pooled), "time_ids": noise(batch, 6)},
    }


def patches(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    return {
        "hidden_states": noise(batch, 2 * length, config.in_channels),
        "encoder_hidden_states": noise(batch, length, config.joint_attention_dim),
        "pooled_projections": noise(batch, config.pooled_projection_dim),
        "timestep": torch.full((batch,), 0.5),
        "img_ids": torch.arange(6 * length).remainder(64).view(-1, 3).float(),
        "txt_ids": torch.zeros(length, 3),
    }


def picture(config: Any, batch: int, length: int) -> dict[str, Any]:
    """Patches of a picture whose sides have an eighth of `length` each, and its text."""
    side = max(4, length // 8)
    return {
        "hidden_states": noise(batch, side * side, config.in_channels),
        "encoder_hidden_states": noise(batch, length, config.joint_attention_dim),
        "encoder_hidden_states_mask": torch.ones(batch, length, dtype=torch.bool),
        "timestep": torch.full((batch,), 0.5),
        "img_shapes": [[(1, side, side)]] * batch,
    }


def video(config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Latent frames of a video: nine of 60 x 104 behind a text of 512 tokens."""
    frames, height, width = (9, 60, 104) if length >= 512 else (2, 4, 4)
    return {
        "hidden_states": noise(batch, config.in_channels, frames, height, width),
        "encoder_hidden_states": noise(batch, length, config.text_dim),
        "timestep": torch.full((batch,), 500),
    }


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


# ---- Sizes -------------------------------------------------------------------------------------


def decoder(hidden: int, layers: int, heads: int, ffn: int, vocab: int, **more: Any) -> Any:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **more,
    }


# Wider than little.py has it, so that activations fit into what weights leave of a budget.
LITTLE = {"intermediate_size": 128, "vocab_size": 320}


def causal(name: str, full: dict[str, Any], **small: Any) -> Shape:
    """A decoder of text that makes tokens."""
    return Shape(f"{name}ForCausalLM", f"{name}Config", full, text, True, {**LITTLE, **small})


LLAMA_3 = {"num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0}
MEDIUM = {"num_key_value_heads": 4, "max_position_embeddings": 4096}
QWEN_2 = {"num_key_value_heads": 2, "tie_word_embeddings": True}
QWEN_3_EXPERTS = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
DEEPSEEK_EXPERTS = {
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

SHAPES: dict[str, Shape] = {
    "llama": causal("Llama", decoder(4096, 32, 32, 14336, 128256, **LLAMA_3)),
    "llama-70b": causal(
        "Llama",
        decoder(8192, 80, 64, 28672, 128256, **LLAMA_3),
        hidden_size=256,
        head_dim=64,
        intermediate_size=512,
    ),
    "llama-medium": causal("Llama", decoder(2560, 24, 20, 8192, 32000, **MEDIUM)),
    "qwen2": causal("Qwen2", decoder(1536, 28, 12, 8960, 151936, **QWEN_2)),
    "gemma": causal(
        "Gemma", decoder(2048, 18, 8, 16384, 256000, num_key_value_heads=1, head_dim=256)
    ),
    "phi": causal("Phi", decoder(2560, 32, 32, 10240, 51200)),
    "opt": causal(
        "OPT",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
            "word_embed_proj_dim": 2048,
        },
    ),
    "bloom": causal(
        "Bloom", {"hidden_size": 2048, "n_layer": 24, "n_head": 16, "vocab_size": 250880}
    ),
    "mamba": causal(
        "Mamba", {"hidden_size": 2048, "num_hidden_layers": 48, "vocab_size": 50280}
    )._replace(inputs=text_alone),
    "t5": Shape(
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 2048,
            "d_kv": 64,
            "d_ff": 5120,
            "num_layers": 24,
            "num_heads": 32,
            "feed_forward_proj": "gated-gelu",
            "decoder_start_token_id": 0,
        },
        encoder_decoder,
        True,
    ),
    "bert": Shape("BertForMaskedLM", "BertConfig", decoder(1024, 24, 16, 4096, 30522), text),
    "mixtral": causal("Mixtral", decoder(4096, 8, 32, 14336, 32000, num_key_value_heads=8)),
    "qwen3-moe": causal("Qwen3Moe", decoder(2048, 16, 32, 6144, 151936, **QWEN_3_EXPERTS)),
    "deepseek-v2-lite": causal(
        "DeepseekV2",
        decoder(2048, 27, 16, 10944, 102400, **DEEPSEEK_EXPERTS),
        head_dim=8,
        num_key_value_heads=4,
    ),
    "vit": Shape(
        "ViTModel",
        "ViTConfig",
        {
            "hidden_size": 1408,
            "num_hidden_layers": 40,
            "num_attention_heads": 16,
            "intermediate_size": 6144,
            "patch_size": 14,
        },
        image,
    ),
    "clip": Shape(
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": decoder(1280, 32, 20, 5120, 49408, projection_dim=1280),
            "vision_config": {
                "hidden_size": 1664,
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "intermediate_size": 8192,
                "patch_size": 14,
                "projection_dim": 1280,
            },
            "projection_dim": 1280,
        },
        text_and_image,
    ),
    "whisper": Shape(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "d_model": 1280,
            "encoder_layers": 32,
            "decoder_layers": 32,
            "encoder_attention_heads": 20,
            "decoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "decoder_ffn_dim": 5120,
            "num_mel_bins": 128,
        },
        sound,
        True,
        {
            "num_mel_bins": 16,
            "max_source_positions": 32,
            "max_target_positions": 64,
            "decoder_start_token_id": 1,
        },
    ),
    "sdxl-unet": Shape(
        "UNet2DConditionModel",
        None,
        {
            "sample_size": 128,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (320, 640, 1280),
            "transformer_layers_per_block": (1, 2, 10),
            "attention_head_dim": (5, 10, 20),
            "cross_attention_dim": 2048,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
        latents,
        small={
            "sample_size": 16,
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "block_out_channels": (32, 64),
            "transformer_layers_per_block": (1, 2),
            "attention_head_dim": (2, 4),
            "cross_attention_dim": 64,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 16,
            "projection_class_embeddings_input_dim": 160,
            "norm_num_groups": 8,
        },
    ),
    "flux": Shape(
        "FluxTransformer2DModel",
        None,
        {"num_layers": 19, "num_single_layers": 38},
        patches,
        small={
            "in_channels": 16,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "joint_attention_dim": 64,
            "pooled_projection_dim": 64,
            "axes_dims_rope": (4, 6, 6),
        },
    ),
    "qwen-image": Shape(
        "QwenImageTransformer2DModel",
        None,
        {"num_layers": 60},
        picture,
        small={
            "in_channels": 16,
            "num_layers": 4,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "joint_attention_dim": 64,
            "axes_dims_rope": (4, 6, 6),
        },
    ),
    "wan": Shape(
        "WanTransformer3DModel",
        None,
        {"num_layers": 40},
        video,
        small={
            "num_layers": 4,
            "attention_head_dim": 12,
            "num_attention_heads": 4,
            "text_dim": 64,
            "ffn_dim": 128,
        },
    ),
}
# Batch and length where they are not (1, 512).
SIZES = {"mamba": (2, 64), "vit": (8, 0), "clip": (4, 64), "sdxl-unet": (2, 0), "flux": (1, 512)}
