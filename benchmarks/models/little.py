# SPDX-License-Identifier: Apache-2.0
"""Any configuration of transformers made small: each size that it has by a name of SMALL.

What else a configuration says stays as it is, and so a small model has the layers of a large one.
"""

from __future__ import annotations

from typing import Any

WIDTH, WIDE, LAYERS, HEADS = 64, 96, 4, 4
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim"), WIDTH),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff"), WIDE),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), WIDE),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **{"num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "projection_dim": 32},
    **{"vocab_size": 300, "type_vocab_size": 2, "pad_token_id": 0, "bos_token_id": 1},
    **{"eos_token_id": 2, "max_position_embeddings": 128, "n_positions": 128},
    **{"image_size": 32, "patch_size": 8, "num_channels": 3, "sliding_window": 16},
    **{"moe_intermediate_size": 48, "shared_expert_intermediate_size": 48},
    **{"num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
    **{"n_group": 1, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "state_size": 8},
}


def sizes_of(config: Any) -> dict[str, Any]:
    """The small sizes of a configuration, and of those within it, as keywords for its class."""

    def own(of: Any) -> dict[str, Any]:
        return {key: value for key, value in SMALL.items() if type(getattr(of, key, None)) is int}

    parts = {key: getattr(config, key, None) for key in getattr(config, "sub_configs", {})}
    return {**own(config), **{key: own(of) for key, of in parts.items() if of is not None}}
