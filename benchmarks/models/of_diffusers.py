# SPDX-License-Identifier: Apache-2.0
"""Models of diffusers, small and with what they are given, for architectures.py.

A class's defaults are those of a published model. Heads keep their size, and so what is made for
them (rotary embeddings) stays right; there are two of them, and two layers. Sizes are found by
name. What a class wants besides is in MORE, what its forward wants besides in GIVEN.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

TEXT, HEADS, LAYERS, TOKENS, SIDE, FRAMES = 32, 2, 2, 16, 16, 5

HEADED = re.compile(r"(audio_|text_)?(num_attention_heads|n_?heads|num_heads|dit_heads)")
KEY_HEADS = re.compile(r"(text_)?(num_key_value_heads|n_kv_heads|num_kv_heads)")
LAYERED = re.compile(r".*layers|.*layers_per_block|depth|dit_depth|LFE_depth|.*_blocks|.*_depths?")
WIDE = re.compile(r"hidden_size|dim|model_dim|dit_dim|token_dim|embed_dim|d_model|inner_dim")
TEXTS = re.compile(
    r"joint_attention_dim|text_embed_dim|text_embed_2_dim|text_dim|caption_channels|cap_feat_dim"
    r"|context_in_dim|text_hidden_dim|in_text_dim2?|pooled_projection_dim|llm_features_dim"
    r"|text_in_dim|text_emb_dim|cross_attention_dim|cross_attention_dim_t5|encoder_hid_dim"
    r"|text_encoder_dim|dit_text_dim|cond_token_dim|global_cond_dim|image_dim|image_embed_dim"
    r"|cross_attention_input_dim|global_states_input_dim|clip_text_pooled_in_channels"
)
FED = re.compile(r"(audio_)?ffn?_(hidden_)?(size|dim)|.*intermediate_size|ff_inner_dim|d_ff")
BASES = re.compile(r"base_dim|decoder_base_dim|ch|base_channels|channels|hidden_channels")
# What a forward is given has these sizes: the first that there is.
IN = re.compile(
    r"in_channels|input_channels|in_visual_dim|latent_dim|io_channels|audio_channels|input_dim"
)
TEXT_KEYS = """joint_attention_dim text_embed_dim text_dim caption_channels cap_feat_dim
context_in_dim text_hidden_dim in_text_dim llm_features_dim text_in_dim encoder_hid_dim
dit_text_dim cond_token_dim cross_attention_input_dim cross_attention_dim""".split()
ROW = torch.arange(4.0)


def shrunk(key: str, value: Any, old: dict[str, int]) -> Any:
    """A size of a configuration, made small by its name; all others as they are."""
    if isinstance(value, (tuple, list)) and value and all(type(v) is int for v in value):
        if key.endswith("channels"):
            return type(value)(32 if v == min(value) < max(value) else 64 for v in value)
        return type(value)(min(v, 1) for v in value) if LAYERED.fullmatch(key) else value
    if type(value) is not int:
        return value
    if HEADED.fullmatch(key) or KEY_HEADS.fullmatch(key):
        return min(value, HEADS)
    if LAYERED.fullmatch(key):
        return min(value, LAYERS)
    if value == old["hidden"]:
        return old["hidden"] // old["heads"] * min(old["heads"], HEADS)
    if WIDE.fullmatch(key) and value % old["heads"] == 0:
        return value // old["heads"] * min(old["heads"], HEADS)
    if TEXTS.fullmatch(key):
        return TEXT
    if FED.fullmatch(key):
        return 4 * TEXT
    return TEXT if BASES.fullmatch(key) else value


def sizes(cls: type) -> dict[str, Any]:
    """What a class is to be made with."""
    takes = inspect.signature(cls.__init__).parameters
    given = {k: p.default for k, p in takes.items() if p.default is not p.empty}
    heads = next((v for k, v in given.items() if HEADED.fullmatch(k) and type(v) is int), 1)
    wide = next((v for k, v in given.items() if k == "hidden_size"), 0)
    hidden = wide or heads * (given.get("attention_head_dim") or 0)
    old = {"heads": heads, "hidden": hidden}
    small = {key: shrunk(key, value, old) for key, value in given.items()}
    return {k: v for k, v in small.items() if v is not given[k]} | MORE.get(cls.__name__, {})


MORE: dict[str, dict[str, Any]] = {
    "AnimaTextConditioner": {"source_dim": 32, "target_dim": 32, "model_dim": 32}
    | {"num_attention_heads": 2, "target_vocab_size": 300},
    "AudioLDM2ProjectionModel": {"text_encoder_dim": 32, "text_encoder_1_dim": 32}
    | {"langauge_model_dim": 32},
    "AuraFlowTransformer2DModel": {"attention_head_dim": 32, "caption_projection_dim": 64},
    "AutoencoderKLHunyuanImage": {"in_channels": 3, "out_channels": 3, "latent_channels": 8}
    | {"block_out_channels": (32, 64), "layers_per_block": 1, "spatial_compression_ratio": 2}
    | {"sample_size": 64},
    "AutoencoderKLKVAEVideo": {"ch_mult": (1, 2, 2, 2)},
    "AutoencoderOobleck": {"encoder_hidden_size": 8, "decoder_channels": 8}
    | {"decoder_input_channels": 4},
    "ChromaTransformer2DModel": {"approximator_hidden_dim": 64},
    "CogVideoXTransformer3DModel": {"sample_width": 16, "sample_height": 16}
    | {"sample_frames": 17},
    "ConsisIDTransformer3DModel": {"sample_width": 16, "sample_height": 16, "sample_frames": 17},
    "DreamLiteTransformer2DModel": {"in_channels": 32},
    "DreamLiteUNetModel": {"attention_head_dim": 16},
    "HunyuanDiT2DControlNetModel": {"in_channels": 4, "patch_size": 2, "hidden_size": 176}
    | {"transformer_num_layers": 6},
    "HunyuanDiT2DModel": {"in_channels": 4, "patch_size": 2, "hidden_size": 176},
    "I2VGenXLUNet": {"attention_head_dim": 8},
    "Ideogram4PromptEnhancerHead": {"hidden_size": 64, "vocab_size": 300},
    "Kandinsky5Transformer3DModel": {"model_dim": 128, "ff_dim": 128, "time_dim": 64},
    "Kandinsky6SRTransformer3DModel": {"model_dim": 128, "ff_dim": 128, "time_dim": 64},
    "Kandinsky6Transformer3DModel": {"model_dim": 256, "ff_dim": 128, "time_dim": 64},
    "LTX2VideoTransformer3DModel": {"audio_cross_attention_dim": 128},
    "LatteTransformer3DModel": {"in_channels": 4, "patch_size": 2, "sample_size": 16}
    | {"cross_attention_dim": 176, "caption_channels": 32, "norm_type": "ada_norm_single"}
    | {"num_embeds_ada_norm": 1000, "attention_bias": True, "video_length": 5},
    "MMAudioVocoder": {"upsample_initial_channel": 128},
    "MiniMaxMusic3ConditionEncoder": {"condition_hidden_dim": 64, "out_dim": 64},
    "MiniMaxMusic3RVQDepthDecoder": {"hidden_size": 128},
    "MiniMaxMusic3Vocoder": {"decoder_input_dim": 64, "decoder_hidden_dim": 96},
    "OmniGenTransformer2DModel": {
        "rope_scaling": {"long_factor": [1.0] * 48, "short_factor": [1.0] * 48}
    },
    "ReduxImageEncoder": {"redux_dim": 32, "txt_in_features": 64},
    "StableAudioProjectionModel": {"text_encoder_dim": 32, "conditioning_dim": 32}
    | {"min_value": 0, "max_value": 100},
    "Transformer2DModel": {"in_channels": 32, "cross_attention_dim": 32},
    "TransformerTemporalModel": {"in_channels": 32, "cross_attention_dim": None},
    "UNet1DModel": {"extra_in_channels": 64},
    "UNet3DConditionModel": {"attention_head_dim": 8},
    "UNetSpatioTemporalConditionModel": {"num_attention_heads": (2, 2, 2, 2)},
    "UVit2DModel": {"hidden_size": 64, "block_out_channels": 64, "in_channels": 64}
    | {"block_num_heads": 2, "vocab_size": 300, "codebook_size": 256}
    | {"intermediate_size": 128},
    "WanAnimateTransformer3DModel": {"motion_encoder_size": 64, "motion_style_dim": 32}
    | {"motion_encoder_dim": 32, "face_encoder_hidden_dim": 64, "image_dim": 32},
    "WanVACETransformer3DModel": {"vace_layers": [0, 1]},
}
Given = Callable[[dict[str, Any]], dict[str, Any]]


def noise(*names: str, shape: tuple[int, ...]) -> Given:
    """The same shape for some names."""
    return lambda _: {name: torch.randn(shape) for name in names}


def controlled(_: dict[str, Any]) -> dict[str, Any]:
    """A picture for a ControlNet, which it takes to a latent's size."""
    return {"controlnet_cond": torch.randn(1, 3, 8 * SIDE, 8 * SIDE)}


def videos(_: dict[str, Any]) -> dict[str, Any]:
    """Text for each picture of a video."""
    return {"encoder_hidden_states": torch.randn(FRAMES, 8, TEXT)}


def hunyuan_dit(config: dict[str, Any]) -> dict[str, Any]:
    """Two texts, sizes and style."""
    texts = torch.randn(1, 77, TEXT), torch.randn(1, 256, TEXT)
    rotary = torch.ones(SIDE * SIDE // 4, config["attention_head_dim"])
    return {
        "timestep": torch.tensor([3.0]),
        "encoder_hidden_states": texts[0],
        "encoder_hidden_states_t5": texts[1],
        "text_embedding_mask": torch.ones(1, 77),
        "text_embedding_mask_t5": torch.ones(1, 256),
        "image_meta_size": torch.ones(1, 6),
        "style": torch.tensor([0]),
        "image_rotary_emb": (rotary.cos(), rotary.sin()),
    }


def ltx2(config: dict[str, Any]) -> dict[str, Any]:
    """A video and its sound."""
    captions = config["caption_channels"]
    return {
        "audio_hidden_states": torch.randn(1, 4, config["audio_in_channels"]),
        "encoder_hidden_states": torch.randn(1, 8, captions),
        "audio_encoder_hidden_states": torch.randn(1, 8, captions),
        "audio_encoder_attention_mask": torch.ones(1, 8),
        "timestep": torch.full((1, TOKENS), 3.0),
        "audio_timestep": torch.full((1, 4), 3.0),
        "fps": 24.0,
        "audio_num_frames": 4,
    }


GIVEN: dict[str, Given] = {
    "AceStepAudioTokenDetokenizer": noise("hidden_states", shape=(1, 4, 256)),
    "AceStepConditionEncoder": lambda _: {
        "text_hidden_states": torch.randn(1, 8, TEXT),
        "text_attention_mask": torch.ones(1, 8),
        "lyric_hidden_states": torch.randn(1, 8, TEXT),
        "lyric_attention_mask": torch.ones(1, 8),
        "refer_audio_acoustic_hidden_states_packed": torch.randn(1, 8, 64),
        "refer_audio_order_mask": torch.tensor([0]),
    },
    "AceStepTransformer1DModel": lambda c: {
        "hidden_states": torch.randn(1, TOKENS, c["audio_acoustic_hidden_dim"]),
        "context_latents": torch.randn(1, TOKENS, 2 * c["audio_acoustic_hidden_dim"]),
        "encoder_hidden_states": torch.randn(1, 8, c["hidden_size"]),
        "timestep": torch.tensor([0.5]),
        "timestep_r": torch.tensor([0.5]),
    },
    "AnimaTextConditioner": lambda c: {
        "source_hidden_states": torch.randn(1, 8, c["source_dim"]),
        "target_input_ids": torch.arange(8)[None],
    },
    "AnyFlowTransformer3DModel": lambda _: {
        "timestep": torch.full((1, FRAMES), 3),
        "r_timestep": torch.full((1, FRAMES), 2),
    },
    "AudioLDM2ProjectionModel": noise("hidden_states", "hidden_states_1", shape=(1, 8, TEXT)),
    "AutoencoderKLMochi": noise("sample", shape=(1, 3, 7, 64, 64)),
    "AutoencoderKLQwenImage21": noise("sample", shape=(1, 4, 1, 64, 64)),
    "AutoencoderRAE": noise("sample", shape=(1, 3, 224, 224)),
    "BriaFiboTransformer2DModel": lambda _: {
        "text_encoder_layers": [torch.randn(1, 8, 32) for _ in range(4)],
    },
    "Ideogram4PromptEnhancerHead": noise("hidden_states", shape=(1, 8, 64)),
    "ReduxImageEncoder": noise("x", shape=(1, 8, 32)),
    "CLIPImageProjection": noise("x", shape=(1, 768)),
    "CogVideoXTransformer3DModel": noise("encoder_hidden_states", shape=(1, 226, TEXT)),
    "ConsisIDTransformer3DModel": noise("encoder_hidden_states", shape=(1, 226, TEXT)),
    "ControlNetModel": controlled,
    "CosmosTransformer3DModel": lambda _: {
        "padding_mask": torch.zeros(1, 1, SIDE, SIDE),
        "fps": 24,
        "encoder_hidden_states": torch.randn(1, 8, TEXT),
    },
    "ErnieImageTransformer2DModel": lambda c: {
        "text_bth": torch.randn(1, 8, TEXT),
        "text_lens": torch.tensor([8]),
    },
    "GlmImageTransformer2DModel": lambda _: {
        "prior_token_id": torch.arange(64)[None],
        "prior_token_drop": torch.zeros(1, 64, dtype=torch.bool),
    },
    "HunyuanDiT2DControlNetModel": hunyuan_dit,
    "HunyuanDiT2DModel": hunyuan_dit,
    "HunyuanImageTransformer2DModel": lambda _: {"timestep_r": None},
    "HunyuanVideo15Transformer3DModel": lambda c: {
        "timestep_r": None,
        "encoder_hidden_states_2": torch.randn(1, 8, TEXT),
        "encoder_attention_mask_2": torch.ones(1, 8, dtype=torch.bool),
        "image_embeds": torch.randn(1, 4, TEXT),
    },
    "I2VGenXLUNet": lambda _: {
        "fps": torch.tensor([8]),
        "image_latents": torch.randn(1, 4, FRAMES, SIDE, SIDE),
        "image_embeddings": torch.randn(1, TEXT),
    },
    "Ideogram4Transformer2DModel": lambda c: {
        "position_ids": torch.zeros(1, TOKENS, 3, dtype=torch.long),
        "segment_ids": torch.zeros(1, TOKENS, dtype=torch.long),
        "indicator": torch.ones(1, TOKENS, dtype=torch.long),
        "encoder_hidden_states": torch.randn(1, TOKENS, TEXT),
    },
    "JoyImageEditPlusTransformer3DModel": lambda _: {
        "hidden_states": torch.randn(1, TOKENS, 16, 1, 2, 2),
        "shape_list": [[(1, 4, 4)]],
    },
    "Kandinsky5Transformer3DModel": lambda c: {
        "hidden_states": torch.randn(1, 2, SIDE, SIDE, c["in_visual_dim"]),
        "visual_rope_pos": [torch.arange(2), torch.arange(8), torch.arange(8)],
        "text_rope_pos": torch.arange(8),
        "timestep": torch.tensor([3.0]),
        "pooled_projections": torch.randn(1, TEXT),
    },
    "Kandinsky6SRLatentUpscalerBank": lambda c: {
        "latents": torch.randn(1, c["in_channels"], 1, 8, 8),
        "scale": 2,
    },
    "Kandinsky6SRTransformer3DModel": noise("hidden_states", shape=(1, 2, 8, 8, 129)),
    "Krea2Transformer2DModel": lambda c: {
        "encoder_hidden_states": torch.randn(1, 8, c["num_text_layers"], TEXT),
        "position_ids": torch.zeros(8 + TOKENS, 3),
        "timestep": torch.tensor([0.5]),
    },
    "LTX2VideoTransformer3DModel": ltx2,
    "LatteTransformer3DModel": lambda _: {"encoder_attention_mask": None},
    "MMAudioVocoder": noise("mel", shape=(1, 128, 16)),
    "MiniMaxMusic3ConditionEncoder": lambda c: {
        "hidden_states": torch.randn(1, 8, c["num_condition_layers"] * c["condition_hidden_dim"])
    },
    "MiniMaxMusic3RVQDepthDecoder": lambda c: {
        "inputs_embeds": torch.randn(1, 8, c["hidden_size"])
    },
    "MiniMaxMusic3Transformer1DModel": lambda c: {
        "encoder_hidden_states": torch.randn(1, TOKENS, c["condition_dim"]),
    },
    "MiniMaxMusic3Vocoder": noise("latents", shape=(1, 128, 16)),
    "OmniGenTransformer2DModel": lambda _: {
        "input_ids": torch.arange(8)[None],
        "input_img_latents": [],
        "input_image_sizes": {},
        "attention_mask": torch.ones(1, 8 + 65, 8 + 65),
        "position_ids": torch.arange(8 + 65)[None],
    },
    "PixArtTransformer2DModel": lambda _: {
        "added_cond_kwargs": {
            "resolution": torch.tensor([[128.0, 128.0]]),
            "aspect_ratio": torch.tensor([[1.0]]),
        },
    },
    "PriorTransformer": lambda c: {
        "hidden_states": torch.randn(1, c["embedding_dim"]),
        "proj_embedding": torch.randn(1, c["embedding_dim"]),
        "encoder_hidden_states": torch.randn(1, 77, c["embedding_dim"]),
    },
    "SparseControlNetModel": lambda _: {
        "controlnet_cond": torch.randn(1, 4, FRAMES, SIDE, SIDE),
        "encoder_hidden_states": torch.randn(FRAMES, 8, TEXT),
        "conditioning_mask": torch.ones(1, 1, FRAMES, SIDE, SIDE),
    },
    "StableAudio3DiTModel": lambda c: {
        "hidden_states": torch.randn(1, c["io_channels"], TOKENS),
        "global_hidden_states": torch.randn(1, TEXT),
        "local_add_cond": torch.randn(1, c["local_add_cond_dim"], TOKENS),
        "timestep": torch.tensor([0.5]),
    },
    "StableAudioDiTModel": lambda c: {
        "global_hidden_states": torch.randn(1, 1, c["global_states_input_dim"]),
        "rotary_embedding": (torch.ones(TOKENS + 1, 32), torch.zeros(TOKENS + 1, 32)),
        "hidden_states": torch.randn(1, 64, TOKENS),
    },
    "StableCascadeUNet": lambda c: {
        "sample": torch.randn(1, c["in_channels"], SIDE, SIDE),
        "timestep_ratio": torch.tensor([0.5]),
        "clip_text_pooled": torch.randn(1, 1, c["clip_text_pooled_in_channels"]),
    },
    "T2IAdapter": noise("x", shape=(1, 3, 64, 64)),
    "T5FilmDecoder": lambda c: {
        "encodings_and_masks": [(torch.randn(1, 8, c["d_model"]), torch.ones(1, 8))],
        "decoder_input_tokens": torch.randn(1, c["targets_length"], c["input_dims"]),
        "decoder_noise_time": torch.tensor([0.5]),
    },
    "TransformerTemporalModel": lambda _: {"num_frames": 1, "encoder_hidden_states": None},
    "UNet1DModel": noise("sample", shape=(1, 2, 64)),
    "UNetControlNetXSModel": lambda _: {
        "sample": torch.randn(1, 4, SIDE, SIDE),
        "controlnet_cond": torch.randn(1, 3, 8 * SIDE, 8 * SIDE),
    },
    "UNetMotionModel": videos,
    "UNetSpatioTemporalConditionModel": lambda _: {
        "encoder_hidden_states": torch.randn(1, 1, TEXT),
        "added_time_ids": torch.ones(1, 3),
    },
    "UVit2DModel": lambda c: {
        "input_ids": torch.arange(64).reshape(1, 8, 8),
        "encoder_hidden_states": torch.randn(1, 8, c["encoder_hidden_size"]),
        "pooled_text_emb": torch.randn(1, c["cond_embed_dim"]),
        "micro_conds": torch.ones(1, 5),
    },
    "WanAnimateTransformer3DModel": lambda c: {
        "pose_hidden_states": torch.randn(1, 16, FRAMES - 1, SIDE, SIDE),
        "encoder_hidden_states_image": torch.randn(1, 4, TEXT),
        "face_pixel_values": torch.randn(
            1, 3, 13, c["motion_encoder_size"], c["motion_encoder_size"]
        ),
    },
    "WanVACETransformer3DModel": lambda c: {
        "control_hidden_states": torch.randn(1, c["vace_in_channels"], FRAMES, SIDE, SIDE),
    },
    "ZImageTransformer2DModel": lambda _: {
        "x": [torch.randn(16, 1, SIDE, SIDE)],
        "t": torch.tensor([0.5]),
        "cap_feats": [torch.randn(8, TEXT)],
    },
}


def names(_: str) -> list[str]:
    """All models of diffusers."""
    import diffusers

    found = (getattr(diffusers, name, None) for name in dir(diffusers))
    base = diffusers.ModelMixin
    return sorted(
        cls.__name__
        for cls in found
        if inspect.isclass(cls) and issubclass(cls, base) and cls is not base
    )


def make(_: str, name: str) -> Any:
    """One of diffusers; what its class leaves zero or unset is random, so that all is used."""
    import diffusers

    cls = getattr(diffusers, name)
    model = cls(**sizes(cls)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=(weight.numel() / weight.shape[0]) ** -0.5)
            elif not (weight.isfinite().all() and weight.any()):
                weight.normal_(std=0.1)
    return model


def width(config: dict[str, Any], pattern: re.Pattern[str]) -> int:
    """The first size of that name that there is."""
    return next((v for k, v in config.items() if pattern.fullmatch(k) and type(v) is int), TEXT)


def usual(model: Any) -> Iterator[dict[str, Any]]:
    """What its forward could be given, one guess after another."""
    config, takes = dict(model.config), inspect.signature(model.forward).parameters
    channels = width(config, IN)
    axes = config.get("axes_dims_rope") or (0, 0, 0)
    rows = (axis.flatten() for axis in torch.meshgrid(ROW, ROW, indexing="ij"))
    grid = torch.stack([torch.zeros(TOKENS), *rows], 1)
    ids = torch.nn.functional.pad(grid, (0, len(axes) - 3))
    texts = next((config[k] for k in TEXT_KEYS if type(config.get(k)) is int), TEXT)
    given: dict[str, Any] = {
        "encoder_hidden_states": torch.randn(1, 8, texts),
        "pooled_projections": torch.randn(1, config.get("pooled_projection_dim") or TEXT),
        "img_ids": ids,
        "txt_ids": torch.zeros(8, len(axes)),
        "guidance": torch.ones(1),
        "encoder_attention_mask": torch.ones(1, 8, dtype=torch.bool),
        "encoder_hidden_states_mask": torch.ones(1, 8, dtype=torch.bool),
        "encoder_mask": torch.ones(1, 8, dtype=torch.bool),
        "img_shapes": [[(1, 4, 4)]],
        "num_frames": 1,
        "height": 4,
        "width": 4,
        "class_labels": torch.tensor([1]),
        "original_size": torch.tensor([[16.0, 16.0]]),
        "target_size": torch.tensor([[16.0, 16.0]]),
        "crop_coords": torch.tensor([[0.0, 0.0]]),
        "added_time_ids": torch.ones(1, 3),
    }
    if not config.get("guidance_embeds"):
        del given["guidance"]
    if "num_embeds_ada_norm" not in config:
        del given["class_labels"]
    given = {key: value for key, value in given.items() if key in takes}
    main = next(iter(takes))
    encoder = main == "sample" and "timestep" not in takes
    side = 2 * SIDE if encoder else SIDE
    shapes = [(1, channels, side, side), (1, channels, FRAMES, side, side)]
    shapes += [(1, FRAMES, channels, side, side), (1, channels, 4096), (1, channels, TOKENS)]
    shapes.insert(2 * ("img_ids" not in takes and "img_shapes" not in takes), (1, TOKENS, channels))
    for shape in shapes:
        for time in (torch.tensor([3]), torch.tensor([3.0])):
            x = torch.randn(shape)
            times = {k: time for k in ("timestep", "timesteps", "t", "timestep_r") if k in takes}
            conds = {"controlnet_cond": x} if "controlnet_cond" in takes else {}
            more = GIVEN.get(type(model).__name__, lambda _: {})(config)
            yield {main: x, **given, **times, **conds, **more}


def inputs(model: Any) -> dict[str, Any]:
    """The first guess that its forward takes; else the error of the first."""
    first: Exception | None = None
    for given in usual(model):
        try:
            with torch.no_grad():
                model(**given)
        except Exception as error:  # whatever the model says to a wrong shape
            first = first or error
        else:
            return given
    raise first or ValueError("nothing to give")
