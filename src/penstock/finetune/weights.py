# SPDX-License-Identifier: Apache-2.0
"""Weights and optimizer state of one process in safetensors files.

Weights are written as a Hugging Face checkpoint, or as a peft adapter, that other programs and
`--model` can read; what is large is split as theirs are. Tensors are copied to the host and written
a few GiB at a time, so that saving needs no second copy of a model that fills the host already.
What the pager serves is read through state_dict(), wherever it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from penstock.errors import FailedError
from penstock.units import GIB

WEIGHTS, OPTIMIZER = "model", "optimizer"
ADAPTERS, GROUPS = "adapter_model.safetensors", "optimizer.json"
# Bytes of a file; what is copied to the host at one time.
SHARD = 4 * GIB
# What libraries raise for files, or a configuration, that make no sense.
UNREADABLE = (
    *(OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(ImportError, AssertionError, EOFError, SafetensorError),
)
_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")


def said_by(error: Exception) -> str:
    """The first line of what a library says, for an error of one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def save_weights(model: Any, folder: Path, *, adapters: bool) -> None:
    """Write what was trained, and the configuration."""
    state: dict[str, Tensor] = model.state_dict()
    if adapters:
        own = {name: each.to("cpu", copy=True) for name, each in state.items() if "lora_" in name}
        model.save_pretrained(folder, state_dict=own, safe_serialization=True)
        return
    seen: set[tuple[int, torch.Size]] = set()
    once = {}
    for name, tensor in state.items():  # a tied weight has two names
        key = _place(tensor)
        if key not in seen:
            once[name] = tensor
        seen.add(key)
    save_tensors(once, folder, WEIGHTS)
    model.config.save_pretrained(folder)


@torch.no_grad()
def load_weights(model: nn.Module, folder: Path, *, adapters: bool) -> None:
    """Read them back, bit for bit.

    Raises:
        FailedError: If a tensor is missing, another shape's or another model's.
    """
    if adapters:
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        given = load_file(folder / ADAPTERS)
        _check_tensors(get_peft_model_state_dict(model), given, folder)
        set_peft_model_state_dict(model, given)
        return
    own = model.state_dict()
    _check_tensors(own, (name for name, _ in stored_tensors(folder, WEIGHTS)), folder)
    for name, tensor in stored_tensors(folder, WEIGHTS):
        if own[name].shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)}, the model's {tuple(own[name].shape)}"
            raise FailedError(f"{folder}: the tensor {name} is {shapes}")
        own[name].copy_(tensor)


def _check_tensors(own: Mapping[str, Tensor], given: Iterable[str], folder: Path) -> None:
    """Refuse tensors that the model has not got, and a model that is not filled."""
    names = set(given)
    for name in sorted(names - own.keys()):
        raise FailedError(f"{folder}: the tensor {name} is none of this model")
    filled = {_place(own[name]) for name in names}  # a tied weight has two names
    for name, tensor in own.items():
        if _place(tensor) not in filled:
            raise FailedError(f"{folder}: the tensor {name} is missing")


def _place(tensor: Tensor) -> tuple[int, torch.Size]:
    return tensor.data_ptr(), tensor.shape


def save_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write an optimizer's state, and its settings beside it."""
    document = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for number, values in document["state"].items():
        for key, value in values.items():
            place = f"{number}.{key}"
            if isinstance(value, Tensor):
                tensors[place] = value
            else:
                rest[place] = value
    save_tensors(tensors, folder, OPTIMIZER)
    told = {"param_groups": document["param_groups"], "state": rest}
    (folder / GROUPS).write_text(json.dumps(told), encoding="utf-8")


def load_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Read it back, bit for bit, to where the parameters are."""
    told = json.loads((folder / GROUPS).read_text(encoding="utf-8"))
    state: dict[int, dict[str, Any]] = {}
    for place, value in [*told["state"].items(), *stored_tensors(folder, OPTIMIZER)]:
        number, _, key = place.partition(".")
        kept = value.clone() if isinstance(value, Tensor) else value
        state.setdefault(int(number), {})[key] = kept
    groups = [
        {key: tuple(value) if key == "betas" else value for key, value in group.items()}
        for group in told["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def save_tensors(tensors: Mapping[str, Tensor], folder: Path, stem: str) -> None:
    """Write tensors into ``stem.safetensors``, or into several files and their index."""
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern=f"{stem}{{suffix}}.safetensors",
        max_shard_size=SHARD,
    )
    for file, names in split.filename_to_tensors.items():
        copies = {name: tensors[name].to("cpu", copy=True).contiguous() for name in names}
        save_file(copies, folder / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))


def stored_tensors(folder: Path, stem: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that `save_tensors` wrote, one after the other, mapped from its file."""
    for file in sorted(folder.glob(f"{stem}*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  no mapping, only keys()
                yield name, opened.get_tensor(name)


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Put the tokenizer of the checkpoint that was tuned beside the weights."""
    for pattern in _TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copy(file, folder / file.name)
