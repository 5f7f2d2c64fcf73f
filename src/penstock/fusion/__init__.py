# SPDX-License-Identifier: Apache-2.0
"""Fused transformer layers: five ways to compute one block, chosen by name.

    penstock.fusion.parse("attention_layernorm,ffn_layernorm")     names
    penstock.fusion.layer_norm_linear(x, ...)                      functions
    penstock.fusion.DropoutAddLayerNorm(4096, p=0.1)               modules
    penstock.fusion.patch(model, "ffn_layernorm")                  Hugging Face GPT-2 and OPT

Every variant computes the same function of the same parameters as torch's own layers. Importing
this imports neither torch nor triton; the first use of a function does.
"""

from __future__ import annotations

import importlib

from .variants import NAMES, VARIANTS, Fusion, parse, split

_LAZY = {
    "Captured": "captured",
    "Decoder": "decode",
    "DropoutAddLayerNorm": "modules",
    "FusedBlock": "modules",
    "FusedParts": "modules",
    "NormLinear": "modules",
    "ResidualLinear": "modules",
    "attention_projection": "attention",
    "choose": "auto",
    "dropout_add": "dropout_layernorm",
    "dropout_add_layer_norm": "dropout_layernorm",
    "layer_norm_linear": "layernorm_gemm",
    "layer_norm_mlp": "ffn",
    "measuring": "tuning",
    "patch": "huggingface",
    "residual_linear": "layernorm_gemm",
    "unpatch": "huggingface",
}

__all__ = ["NAMES", "VARIANTS", "Fusion", "parse", "split", *sorted(_LAZY)]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'penstock.fusion' has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_LAZY[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value
