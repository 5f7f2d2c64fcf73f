# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 checkpoint in the Hugging Face layout, read straight from the mapped file.

Invariant: everything is checked when the directory is opened (files, names, shapes, dtypes), so
that a load cannot find a mismatch half way; every mismatch is a FailedError of one line with the
name, what was expected and what was found. Each tensor goes from the memory-mapped file to its
destination in one step, converted and transposed on the way: no second copy of the model. The
files stay mapped as long as the loader lives. A loader is used by one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import EnvironmentProblem, FailedError, UsageError
from penstock.files import read_json
from penstock.models.configs import GPTConfig

_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# Penstock's name of a part of a block -> GPT-2's. GPT-2 keeps the weights of its four projections
# as (in, out), which it calls Conv1D; nn.Linear wants (out, in).
_BLOCK_PARTS = {
    "attn_norm": "ln_1",
    "attn.qkv": "attn.c_attn",
    "attn.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_OTHER_PARTS = {
    "token_embedding": "wte",
    "position_embedding": "wpe",
    "final_norm": "ln_f",
    "lm_head": "lm_head",
}
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
# Causal masks that old checkpoints carry along; attention needs none.
_MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
_FLOATS = {"F64", "F32", "F16", "BF16"}


def shipped_checkpoint() -> Path:
    """The directory of the small GPT-2 that comes with Penstock; its README.md says what it is."""
    return Path(__file__).resolve().parent / "data" / "tiny-gpt2"


def open_checkpoint(directory: str | Path) -> tuple[GPTConfig, Callable[[str, Tensor], None]]:
    """Open a directory with config.json and model.safetensors, whole or in indexed shards.

    Args:
        directory: The checkpoint, as ``GPT2LMHeadModel.save_pretrained`` writes it.

    Returns:
        The shape (its name is the directory's), and ``load(name, destination)`` which fills one
        parameter of `GPTConfig.parameter_shapes`, in the destination's own dtype and place.

    Raises:
        FailedError: If a file is missing, damaged or not that of a GPT-2, or does not match.
        EnvironmentProblem: If safetensors is not installed.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FailedError(
            f"{directory}: no such directory", remedy="a directory with config.json in it"
        )
    config = _read_config(directory)
    checkpoint = _Checkpoint(directory, config)
    return config, checkpoint.load


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FailedError(f"{path}: no such file", remedy="a Hugging Face GPT-2 directory")
    content = read_json(path, remedy="a Hugging Face GPT-2 directory")
    if not isinstance(content, dict):
        raise FailedError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def _read_config(directory: Path) -> GPTConfig:
    """The shape that config.json tells; absent keys stand for GPT-2's defaults, as they do there.

    Of the three dropout probabilities, which matter in training only, resid_pdrop counts.
    """
    path = directory / _CONFIG
    raw = _read_json(path)
    if raw.get("model_type") != "gpt2":
        raise FailedError(
            f"{path}: model_type is {raw.get('model_type')!r}, expected 'gpt2'",
            remedy="a GPT-2 checkpoint",
        )
    _refuse_other_functions(path, raw)
    try:
        return GPTConfig(
            name=directory.resolve().name,
            n_layers=raw.get("n_layer", 12),
            n_heads=raw.get("n_head", 12),
            d_model=raw.get("n_embd", 768),
            vocab_size=raw.get("vocab_size", 50257),
            n_positions=raw.get("n_positions", 1024),
            d_ff=raw.get("n_inner") or 0,
            tied=bool(raw.get("tie_word_embeddings", True)),
            dropout=float(raw.get("resid_pdrop", 0.1)),
            norm_eps=float(raw.get("layer_norm_epsilon", 1e-5)),
        )
    except (UsageError, TypeError, ValueError) as error:
        raise FailedError(f"{path}: {error}") from None


def _refuse_other_functions(path: Path, raw: dict[str, Any]) -> None:
    """Refuse options under which the same weights would mean another function."""
    accepted: dict[str, tuple[Any, ...]] = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    for key, values in accepted.items():
        if raw.get(key, values[0]) not in values:
            raise FailedError(f"{path}: {key} is {raw[key]!r}, expected {values[0]!r}")


class _Checkpoint:
    """The mapped files of a checkpoint, every tensor of it found and checked."""

    def __init__(self, directory: Path, config: GPTConfig) -> None:
        self._directory = directory
        self._config = config
        self._tensors: dict[str, tuple[Any, str]] = {}
        for path in self._files():
            self._add_file(path)
        if config.n_layers > len(self._tensors):  # before there is a name for each of their parts
            raise FailedError(
                f"{directory}: {_CONFIG} has {config.n_layers:,} layers, the files "
                f"{len(self._tensors):,} tensors",
                remedy="the files of one checkpoint",
            )
        self._shapes = config.parameter_shapes()
        self._check()

    def load(self, name: str, destination: Tensor) -> None:
        """Fill `destination` with the parameter `name`.

        Raises:
            FailedError: If there is no such parameter, or the destination has another shape.
        """
        if name not in self._shapes:
            raise FailedError(f"{self._directory}: a GPT-2 has no parameter '{name}'")
        if tuple(destination.shape) != self._shapes[name]:
            raise FailedError(
                f"{self._directory}: parameter '{name}' has shape {self._shapes[name]}, "
                f"the destination {tuple(destination.shape)}"
            )
        key = _gpt2_name(name, tied=self._config.tied)
        file, stored_name = self._tensors[key]
        source = file.get_tensor(stored_name)
        with torch.no_grad():
            destination.copy_(source.t() if _CONV1D.search(key) else source)

    def _files(self) -> list[Path]:
        """The one file, or every shard that the index names."""
        single, index = self._directory / _SINGLE, self._directory / _INDEX
        if single.is_file():
            return [single]
        if not index.is_file():
            raise FailedError(
                f"{self._directory}: neither {_SINGLE} nor {_INDEX} is there",
                remedy="save_pretrained(..., safe_serialization=True)",
            )
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise FailedError(f"{index}: expected a 'weight_map' of tensors to files, found none")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name:
                raise FailedError(f"{index}: '{name}' is not a file name in this directory")
            if not (self._directory / name).is_file():
                raise FailedError(
                    f"{self._directory / name}: no such file, but {_INDEX} names it",
                    remedy="fetching the missing shard",
                )
        return [self._directory / name for name in names]

    def _add_file(self, path: Path) -> None:
        safetensors = _import_safetensors()
        try:
            file = safetensors.safe_open(path, framework="pt", device="cpu")
        except (safetensors.SafetensorError, OSError) as error:
            size = path.stat().st_size if path.exists() else 0
            raise FailedError(
                f"{path}: {size} bytes that are not a whole safetensors file: {error}",
                remedy="fetching it again",
            ) from None
        for stored_name in list(file.keys()):
            key = stored_name.removeprefix("transformer.")
            if not _MASK.fullmatch(key):
                self._tensors[key] = (file, stored_name)

    def _check(self) -> None:
        """Hold the tensors that are there against those that the shape asks for."""
        tied = self._config.tied
        expected = {_gpt2_name(name, tied=tied): shape for name, shape in self._shapes.items()}
        for key, shape in expected.items():
            if key not in self._tensors:
                raise FailedError(
                    f"{self._directory}: tensor '{key}' of shape {_stored(key, shape)} is missing"
                )
            file, stored_name = self._tensors[key]
            found = file.get_slice(stored_name)
            if tuple(found.get_shape()) != _stored(key, shape):
                raise FailedError(
                    f"{self._directory}: tensor '{stored_name}' has shape "
                    f"{tuple(found.get_shape())}, expected {_stored(key, shape)}"
                )
            if found.get_dtype() not in _FLOATS:
                raise FailedError(
                    f"{self._directory}: tensor '{stored_name}' is {found.get_dtype()}, "
                    f"expected one of {', '.join(sorted(_FLOATS))}"
                )
        extra = sorted(set(self._tensors) - set(expected) - {"lm_head.weight"})
        if extra:
            raise FailedError(
                f"{self._directory}: {len(extra)} tensors that a GPT-2 of "
                f"{self._config.n_layers} layers does not have, such as '{extra[0]}'"
            )


def _gpt2_name(name: str, *, tied: bool) -> str:
    """GPT-2's name, without the prefix "transformer.", of a parameter of ours."""
    module, _, leaf = name.rpartition(".")
    if tied and module == "lm_head":
        module = "token_embedding"
    if module in _OTHER_PARTS:
        return f"{_OTHER_PARTS[module]}.{leaf}"
    _, layer, part = module.split(".", 2)
    return f"h.{layer}.{_BLOCK_PARTS[part]}.{leaf}"


def _stored(key: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which the file keeps a tensor of our `shape`."""
    return shape[::-1] if _CONV1D.search(key) else shape


def _import_safetensors() -> Any:
    try:
        import safetensors
    except ImportError:
        raise EnvironmentProblem(
            "checkpoints need the safetensors package", remedy="pip install 'penstock[hf]'"
        ) from None
    return safetensors
