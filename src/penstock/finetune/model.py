# SPDX-License-Identifier: Apache-2.0
"""The model of a fine-tune: a shape with random weights or a checkpoint, prepared as asked.

Invariant: nothing is downloaded; random weights are made where they are to live, and the same seed
gives the same weights on the same kind of device. Architectures, checkpoints and recomputation are
transformers' own, adapters are peft's.
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from penstock.errors import FailedError, UsageError

from .request import Request
from .weights import UNREADABLE, said_by

log = logging.getLogger("penstock.finetune")

_DIGITS = re.compile(r"\d+")
# Packed formats have up to eight weights in an element.
_PACKED = 8
_FITTING = "a checkpoint of a causal LM with all its safetensors"


@dataclass(frozen=True)
class Plan:
    """A model that could be built.

    Attributes:
        name: What it is called in results.
        config: Its configuration, of transformers.
        folder: Of the checkpoint; None for random weights.
        positions: Longest sequence, in tokens.
        vocabulary: Ids of tokens are below this.
    """

    name: str
    config: Any
    folder: Path | None
    positions: int
    vocabulary: int


def plan_model(request: Request) -> Plan:
    """Find the model's configuration.

    Raises:
        FailedError: If the folder holds no configuration of a model.
        UsageError: If the sequences are longer than the model's positions.
    """
    from transformers import AutoConfig

    shape = request.shape
    if shape is not None:
        config = AutoConfig.for_model(shape.model_type, **shape.fields)
        name, folder = shape.name, None
    else:
        folder = Path(request.model)
        try:
            # Its own Python, if it has any, is never run.
            config = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except MemoryError:
            raise
        except Exception as error:  # each kind of configuration fails in its own way
            raise FailedError(f"{folder}: {error}", remedy="a checkpoint of a causal LM") from error
        _check_size(folder, config)
        name = folder.resolve().name
    positions = int(getattr(config, "max_position_embeddings", 0) or 2**31)
    request.longest(positions)
    return Plan(name, config, folder, positions, int(config.vocab_size))


def _check_size(folder: Path, config: Any) -> None:
    """Refuse a model that is larger than its files: its memory is had before they are read.

    Raises:
        FailedError: If so, or if a file of tensors cannot be read.
    """
    from transformers import AutoModelForCausalLM

    tensors, elements = _stored_size(folder)
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and not 0 < layers <= tensors:
        raise FailedError(
            f"{folder}: config.json has {layers:,} layers, its files {tensors:,} tensors",
            remedy=_FITTING,
        )
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except UNREADABLE as error:
        raise _unreadable(folder, error) from error
    parameters = sum(each.numel() for each in model.parameters())
    if parameters > _PACKED * elements:
        raise FailedError(
            f"{folder}: the model of config.json has {parameters:,} parameters, its files hold "
            f"{elements:,}",
            remedy=_FITTING,
        )


def _stored_size(folder: Path) -> tuple[int, int]:
    """How many tensors, and elements of tensors, the files of a folder declare."""
    from safetensors import safe_open

    tensors = elements = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  no mapping, only keys()
                    tensors += 1
                    elements += math.prod(opened.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise FailedError(f"{file} cannot be read: {error}", remedy=_FITTING) from error
    return tensors, elements


def _unreadable(folder: Path, error: Exception) -> FailedError:
    return FailedError(f"{folder} cannot be loaded: {said_by(error)}", remedy=_FITTING)


def weight_dtype(request: Request) -> torch.dtype:
    """The dtype that the model's own weights are kept in."""
    if request.dtype == "float32":
        return torch.float32
    if request.zero is not None:  # DeepSpeed keeps fp32 masters of its own
        return torch.bfloat16
    # Weights that nobody trains are only ever read in bf16 under autocast.
    if request.dtype == "mixed" and not request.ways.lora:
        return torch.float32
    return torch.bfloat16


def build_model(request: Request, plan: Plan, device: torch.device) -> nn.Module:
    """Build or load the model on a device, in training mode, with adapters and recomputation.

    Raises:
        FailedError: If the checkpoint cannot be read as this model.
    """
    try:
        model = _build(request, plan, device)
    except torch.OutOfMemoryError:
        if not request.paged:
            raise
        torch.cuda.empty_cache()
        model = _build(request, plan, torch.device("cpu"))  # the pager moves it to the device
    return model


def _build(request: Request, plan: Plan, device: torch.device) -> nn.Module:
    torch.manual_seed(request.seed)
    model = _load(request, plan, device)
    model.config.use_cache = False
    ways = request.ways
    if ways.recompute:
        # DeepSpeed swaps parameters out of saved tensors, which the other way of recomputing
        # takes for a change of shape.
        reentrant = request.zero == 3
        options = {"use_reentrant": reentrant}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        if reentrant:
            model.enable_input_require_grads()
    if ways.lora:
        model = _with_adapters(model, request.lora_rank, device)
    trained: nn.Module = model.train()
    return trained


def _load(request: Request, plan: Plan, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    dtype = weight_dtype(request)
    if plan.folder is None:
        with torch.device(device):
            return AutoModelForCausalLM.from_config(plan.config, dtype=dtype)
    model: Any
    try:
        # With its loading info it gives two.
        found: Any = AutoModelForCausalLM.from_pretrained(
            plan.folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except torch.OutOfMemoryError:
        raise
    except UNREADABLE as error:
        raise _unreadable(plan.folder, error) from error
    model, loaded = found
    _check_filled(plan.folder, model, loaded)
    return model.to(device)


def _check_filled(folder: Path, model: nn.Module, loaded: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that left weights of the model as they were made: at random.

    Raises:
        FailedError: With the first of them, and what else the checkpoint had.
    """
    wrong = sorted(map(str, [*loaded["missing_keys"], *loaded["mismatched_keys"]]))
    unused = sorted(map(str, loaded["unexpected_keys"]))
    known = {_DIGITS.sub("#", name) for name, _ in model.named_parameters()}
    beyond = [name for name in unused if _DIGITS.sub("#", name) in known]
    if beyond:
        raise FailedError(
            f"{folder} does not fit its config.json: {len(beyond)} tensors are of layers that the "
            f"model has not, such as {beyond[0]}",
            remedy=_FITTING,
        )
    if wrong:
        left = f"; it has {unused[0]}, which the model has not" if unused else ""
        raise FailedError(
            f"{folder} does not fit its config.json: {len(wrong)} tensors of the model are missing "
            f"or of another shape, such as {wrong[0]}{left}",
            remedy=_FITTING,
        )
    if unused:
        log.warning("%s: %d tensors are not used, such as %s", folder, len(unused), unused[0])


def _with_adapters(model: Any, rank: int, device: torch.device) -> Any:
    """Adapters beside every matrix of the layers, in fp32 beside frozen weights."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear")
    with warnings.catch_warnings(), torch.device(device):
        # GPT-2's matrices are stored transposed; peft sees it, and says so.
        warnings.filterwarnings("ignore", message="fan_in_fan_out")
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise UsageError(f"L: {error}", remedy="--strategy without L") from error


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The decoder layers: the members of the longest list of modules."""
    lists = [list(each) for each in model.modules() if isinstance(each, nn.ModuleList)]
    return max(lists, key=len, default=[])
