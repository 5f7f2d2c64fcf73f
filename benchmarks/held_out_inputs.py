# SPDX-License-Identifier: Apache-2.0
"""What a pass of each kind of model takes: (configuration, batch, length) -> tensors on the CPU.

The same arguments give the same inputs. Length is that of a text, and means nothing to a model that
takes images alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Inputs = Callable[[Any, int, int], dict[str, Any]]


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


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
