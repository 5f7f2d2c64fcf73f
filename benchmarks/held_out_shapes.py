# SPDX-License-Identifier: Apache-2.0
"""The sizes of the models of held_out_models.py: a benchmark's on a GPU, and a test's.

The large ones are published: Llama-3-8B and 70B, Qwen2-1.5B, Gemma-2B, Phi-2, OPT-1.3B, BLOOM-1b7,
Mamba-1.4B, T5 v1.1 XL and BERT-large; "llama-medium" is nobody's.
"""

from __future__ import annotations

from held_out_inputs import encoder_decoder, text, text_alone
from held_out_mixed import LITTLE, LITTLE_GROUPED, MIXED, Shape, decoder

SHAPES: dict[str, Shape] = {
    "llama": Shape(
        "LlamaForCausalLM",
        "LlamaConfig",
        decoder(
            4096,
            32,
            32,
            14336,
            128256,
            num_key_value_heads=8,
            max_position_embeddings=8192,
            rope_theta=500000.0,
        ),
        LITTLE_GROUPED,
        text,
        True,
    ),
    "llama-70b": Shape(
        "LlamaForCausalLM",
        "LlamaConfig",
        decoder(
            8192,
            80,
            64,
            28672,
            128256,
            num_key_value_heads=8,
            max_position_embeddings=8192,
            rope_theta=500000.0,
        ),
        {**LITTLE_GROUPED, "hidden_size": 256, "intermediate_size": 512},
        text,
        True,
    ),
    "llama-medium": Shape(
        "LlamaForCausalLM",
        "LlamaConfig",
        decoder(2560, 24, 20, 8192, 32000, num_key_value_heads=4, max_position_embeddings=4096),
        LITTLE_GROUPED,
        text,
        True,
    ),
    "qwen2": Shape(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        decoder(1536, 28, 12, 8960, 151936, num_key_value_heads=2, tie_word_embeddings=True),
        {**LITTLE_GROUPED, "tie_word_embeddings": True},
        text,
        True,
    ),
    "gemma": Shape(
        "GemmaForCausalLM",
        "GemmaConfig",
        decoder(2048, 18, 8, 16384, 256000, num_key_value_heads=1, head_dim=256),
        {**LITTLE_GROUPED, "head_dim": 16},
        text,
        True,
    ),
    "phi": Shape(
        "PhiForCausalLM", "PhiConfig", decoder(2560, 32, 32, 10240, 51200), LITTLE, text, True
    ),
    "opt": Shape(
        "OPTForCausalLM",
        "OPTConfig",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "ffn_dim": 8192,
            "word_embed_proj_dim": 2048,
        },
        {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "ffn_dim": 128,
            "vocab_size": 320,
            "word_embed_proj_dim": 64,
            "max_position_embeddings": 128,
        },
        text,
        True,
    ),
    "bloom": Shape(
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 2048, "n_layer": 24, "n_head": 16, "vocab_size": 250880},
        {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 320},
        text,
        True,
    ),
    "mamba": Shape(
        "MambaForCausalLM",
        "MambaConfig",
        {"hidden_size": 2048, "num_hidden_layers": 48, "vocab_size": 50280},
        {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 320},
        text_alone,
        True,
    ),
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
        {
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 3,
            "num_heads": 4,
            "vocab_size": 320,
            "decoder_start_token_id": 0,
        },
        encoder_decoder,
        True,
    ),
    "bert": Shape(
        "BertForMaskedLM", "BertConfig", decoder(1024, 24, 16, 4096, 30522), LITTLE, text
    ),
    **MIXED,
}
# Batch and length where they are not (1, 512).
SIZES = {"mamba": (2, 64), "vit": (8, 0), "clip": (4, 64), "sdxl-unet": (2, 0), "flux": (1, 512)}
