# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, by the headers of its safetensors files alone.

Any model's: a folder of transformers, or one of diffusers with a folder for each component. Nothing
but headers is read, so it takes milliseconds and neither torch nor safetensors. The format:
https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from penstock.errors import FailedError
from penstock.files import read_json

_SUFFIX = ".safetensors"
_USUAL = ("model.safetensors", "diffusion_pytorch_model.safetensors")
_MOST_HEADER = 100_000_000  # bytes, the format's own limit
# An expert of a mixture has its number in its path: layers.3.mlp.experts.7.up_proj.weight.
_EXPERT = re.compile(r"\bexperts\.([0-9]+)\.")
# Of config.json: how many of the experts a token is sent to.
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
_REMEDY = "a folder with *.safetensors in it, as save_pretrained() writes it"


@dataclass(frozen=True)
class Folder:
    """The tensors of a checkpoint.

    Attributes:
        name: The folder's.
        parameters: Elements of all tensors.
        weight_bytes: Bytes of all tensors.
        largest_module_bytes: Bytes of the tensors that one module owns, the most of all modules.
        expert_bytes: Bytes of experts.
        chosen_share: The share of the experts that a token is sent to; 1 where that is not known.
    """

    name: str
    parameters: int
    weight_bytes: int
    largest_module_bytes: int
    expert_bytes: int
    chosen_share: float

    @property
    def touched_bytes(self) -> int:
        """What a pass of one token reads."""
        return self.weight_bytes - int(self.expert_bytes * (1 - self.chosen_share))


def read_folder(folder: Path) -> Folder:
    """Read the headers of a folder's files, and of the folders within it.

    Raises:
        FailedError: If it holds no such file, or one that is damaged.
    """
    files = [file for place in _places(folder) for file in _files(place)]
    if not files:
        raise FailedError(f"{folder}: no {_SUFFIX} file", remedy=_REMEDY)
    adapter = folder / "adapter_config.json"
    if adapter.exists() and all(file.name.startswith("adapter_") for file in files):
        base = _json(adapter).get("base_model_name_or_path")
        raise FailedError(
            f"{folder}: the weights of an adapter alone", remedy=f"its base model's folder, {base}"
        )
    parameters = experts = 0
    modules: dict[tuple[Path, str], int] = {}
    numbers: set[str] = set()
    for file in files:
        for name, (elements, nbytes) in _tensors(file).items():
            module = (file.parent, name.rpartition(".")[0])
            modules[module] = modules.get(module, 0) + nbytes
            parameters += elements
            if (expert := _EXPERT.search(name)) is not None:
                experts += nbytes
                numbers.add(expert[1])
    return Folder(
        name=folder.resolve().name,
        parameters=parameters,
        weight_bytes=sum(modules.values()),
        largest_module_bytes=max(modules.values(), default=0),
        expert_bytes=experts,
        chosen_share=_chosen(folder, len(numbers)),
    )


def _places(folder: Path) -> list[Path]:
    """The folder, or the components that a pipeline's index names."""
    if not folder.is_dir():
        raise FailedError(f"{folder}: no such directory", remedy=_REMEDY)
    index = folder / "model_index.json"
    if not index.exists():
        return [folder]
    # Beside them may lie the same weights in one file, and other versions of components.
    loaded = {n for n, of in _json(index).items() if isinstance(of, list) and any(of)}
    return sorted(path for path in folder.iterdir() if path.name in loaded and path.is_dir())


def _files(place: Path) -> list[Path]:
    """The files of one model: those that an index names, else those that are no variant."""
    names = sorted(path.name for path in place.glob(f"*{_SUFFIX}"))
    for index in sorted(place.glob(f"*{_SUFFIX}.index.json"), key=lambda path: len(path.name)):
        shards = _json(index).get("weight_map")
        if isinstance(shards, dict):
            return [place / name for name in sorted(set(map(str, shards.values())))]
    # The same weights may lie there in another library's names, too.
    usual = [name for name in names if name in _USUAL]
    plain = [name for name in names if "." not in name.removesuffix(_SUFFIX)]
    return [place / name for name in usual or plain or names]


def _tensors(file: Path) -> dict[str, tuple[int, int]]:
    """(elements, bytes) of each tensor of a file."""
    try:
        if not file.is_file():  # a pipe would be waited for
            raise FailedError(f"{file}: no such file", remedy=_REMEDY)
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            whole = file.stat().st_size
            if not 2 <= size <= min(_MOST_HEADER, whole - 8):
                raise FailedError(
                    f"{file}: a header of {size:,} bytes in a file of {whole:,}", remedy=_REMEDY
                )
            header: Any = json.loads(stream.read(size))
    except (OSError, ValueError, RecursionError) as error:
        raise FailedError(f"{file}: {error}", remedy=_REMEDY) from None
    found: dict[str, tuple[int, int]] = {}
    try:
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            begin, end = tensor["data_offsets"]
            elements = prod(tensor["shape"])
            if not all(type(each) is int for each in (begin, end, *tensor["shape"])):
                raise ValueError(f"{name} has a shape or place that is no whole number")
            if not 0 <= begin <= end <= whole - 8 - size or min(tensor["shape"], default=0) < 0:
                raise ValueError(f"{name} lies outside the file")
            # The narrowest type has four bits.
            if elements > 2 * (end - begin):
                raise ValueError(f"{name} of shape {tensor['shape']} has {end - begin:,} bytes")
            found[name] = elements, end - begin
        if sum(nbytes for _, nbytes in found.values()) > whole - 8 - size:
            raise ValueError("its tensors overlap")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FailedError(f"{file}: not a header of tensors: {error}", remedy=_REMEDY) from None
    return found


def _chosen(folder: Path, experts: int) -> float:
    config = folder / "config.json"
    if not experts or not config.exists():
        return 1.0
    chosen = next((v for key in _CHOSEN if isinstance(v := _json(config).get(key), int)), experts)
    return min(experts, max(0, chosen)) / experts


def _json(file: Path) -> dict[str, Any]:
    content = read_json(file, remedy=_REMEDY)
    return content if isinstance(content, dict) else {}
