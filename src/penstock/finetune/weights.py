# SPDX-License-Identifier: Apache-2.0
"""The trained weights of one process in files: all of them, or the adapters alone.

What is written is a Hugging Face checkpoint (or a peft adapter) that other programs, and `--model`,
can read: safetensors, the configuration, and the tokenizer where there was one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, load_model, save_model
from torch import nn

WEIGHTS = "model.safetensors"
ADAPTERS = "adapter_model.safetensors"
_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt")


def save_weights(model: Any, folder: Path, *, adapters: bool) -> None:
    """Write what was trained."""
    if adapters:
        model.save_pretrained(folder, safe_serialization=True)
        return
    save_model(model, str(folder / WEIGHTS), metadata={"format": "pt"})
    model.config.save_pretrained(folder)


def load_weights(model: nn.Module, folder: Path, *, adapters: bool) -> None:
    """Read it back, bit for bit."""
    if not adapters:
        load_model(model, str(folder / WEIGHTS))
        return
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, load_file(folder / ADAPTERS))


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Put the tokenizer of the checkpoint that was tuned beside the weights."""
    for pattern in _TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copy(file, folder / file.name)
