# SPDX-License-Identifier: Apache-2.0
"""Sizes of held-out models that read more than text, or that have experts.

See held_out_shapes.py, which has the language models. Published as well: ViT-g/14, CLIP
ViT-bigG/14, Whisper large-v3, the UNet of SDXL, FLUX.1, DeepSeek-V2-Lite; the other mixtures of
experts have fewer layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from held_out_inputs import Inputs, image, latents, patches, sound, text, text_and_image


class Shape(NamedTuple):
    """An architecture: its classes, its two sizes, what a pass takes, whether it generates.

    `config` is the class of its configuration, or None where the model itself takes the keywords.
    """

    model: str
    config: str | None
    full: dict[str, Any]
    small: dict[str, Any]
    inputs: Inputs
    generates: bool = False


def decoder(hidden: int, layers: int, heads: int, ffn: int, vocab: int, **more: Any) -> Any:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **more,
    }


LITTLE = decoder(64, 4, 4, 128, 320)
LITTLE_GROUPED = {**LITTLE, "num_key_value_heads": 2}
LITTLE_EXPERTS = {**LITTLE_GROUPED, "num_experts_per_tok": 2}

MIXED = {
    "mixtral": Shape(
        "MixtralForCausalLM",
        "MixtralConfig",
        decoder(4096, 8, 32, 14336, 32000, num_key_value_heads=8),
        {**LITTLE_EXPERTS, "num_local_experts": 4},
        text,
        True,
    ),
    "qwen3-moe": Shape(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        decoder(
            2048,
            16,
            32,
            6144,
            151936,
            num_key_value_heads=4,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            norm_topk_prob=True,
        ),
        {**LITTLE_EXPERTS, "head_dim": 16, "num_experts": 8, "moe_intermediate_size": 32},
        text,
        True,
    ),
    "deepseek-v2-lite": Shape(
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        decoder(
            2048,
            27,
            16,
            10944,
            102400,
            n_routed_experts=64,
            n_shared_experts=2,
            num_experts_per_tok=6,
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
            q_lora_rank=None,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
        {
            **LITTLE,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "q_lora_rank": None,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
        },
        text,
        True,
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
        {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "image_size": 32,
            "patch_size": 8,
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
        {
            "text_config": {**LITTLE, "max_position_embeddings": 32},
            "vision_config": {
                "hidden_size": 64,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "intermediate_size": 128,
                "image_size": 32,
                "patch_size": 8,
            },
            "projection_dim": 64,
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
        {
            "d_model": 64,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "num_mel_bins": 16,
            "vocab_size": 320,
            "max_source_positions": 32,
            "max_target_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "decoder_start_token_id": 1,
        },
        sound,
        True,
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
        {
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
        latents,
    ),
    "flux": Shape(
        "FluxTransformer2DModel",
        None,
        {"num_layers": 19, "num_single_layers": 38},
        {
            "in_channels": 16,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "joint_attention_dim": 64,
            "pooled_projection_dim": 64,
            "axes_dims_rope": (4, 6, 6),
        },
        patches,
    ),
}
