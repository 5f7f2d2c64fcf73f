# SPDX-License-Identifier: Apache-2.0
"""Models that are made resident, made empty for attach(), and stepped, by those who measure both.

A user's own model is a file that defines ``build() -> model``, on the CPU or on "meta", and
``step(model, device) -> result``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kit.card import Card
from kit.resident import steps_of
from torch import nn

from models.held_out import draw, subject
from models.shapes import SIZES

Steps = dict[str, Callable[[], Any]]


def modules_of(model: Any) -> list[nn.Module]:
    """The model itself, or the modules of a pipeline."""
    if isinstance(model, nn.Module):
        return [model]
    return [part for part in model.components.values() if isinstance(part, nn.Module)]


@dataclass
class Case:
    """A model, or a pipeline of several, and what is run of it.

    Attributes:
        name: What it is called in results.
        resident: Makes it on the card, with its weights.
        fresh: Makes it for attach(), and what fills it where it is on "meta".
        steps: What is run of it, by name; the same results each time.
        parts: The modules whose calls are passes, which have all of its weights between them.
    """

    name: str
    resident: Callable[[], Any]
    fresh: Callable[[], tuple[Any, Any]]
    steps: Callable[[Any], Steps]
    parts: Callable[[Any], list[nn.Module]] = modules_of


def held_out(name: str, card: Card, tokens: int) -> Case:
    """One of the models that nobody here wrote: a forward pass, and tokens where it makes any."""
    recipe = subject(name, small=card.small)
    batch, length = SIZES.get(name, (1, 512))
    size = batch, min(length, 16) if card.small else length

    def steps(model: Any) -> Steps:
        given = recipe.make_inputs(model, *size, card.device)
        return steps_of(recipe, model, given, tokens)

    return Case(
        name,
        lambda: recipe.resident(card.device),
        lambda: (recipe.build("meta"), recipe.loader(card.device)),
        steps,
    )


def from_file(path: Path, card: Card) -> Case:
    """A user's own model."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    first: dict[str, torch.Tensor] = {}

    def resident() -> Any:
        model = file.build()
        for prefix, module in named_modules_of(model):
            if any(tensor.is_meta for tensor in tensors_of(module).values()):
                materialize(module, card.device)
            module.to(card.device)
            first.update({prefix + key: value for key, value in tensors_of(module).items()})
        return model

    def load(name: str, destination: torch.Tensor) -> None:
        destination.copy_(first[name].detach())

    def fresh() -> tuple[Any, Any]:
        """Weights may be drawn at random: those of the resident one."""
        model = file.build()
        for prefix, module in named_modules_of(model):
            for key, tensor in tensors_of(module).items():
                if not tensor.is_meta:
                    tensor.detach().copy_(first[prefix + key].detach())
        return model, load

    def steps(model: Any) -> Steps:
        return {path.stem: partial(file.step, model, card.device)}

    return Case(path.stem, resident, fresh, steps)


def named_modules_of(model: Any) -> list[tuple[str, nn.Module]]:
    """As modules_of(), each with what attach() puts before its tensors' names."""
    if isinstance(model, nn.Module):
        return [("", model)]
    parts = model.components.items()
    return [(f"{name}.", part) for name, part in parts if isinstance(part, nn.Module)]


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by each of their names: the very objects, wherever their bytes go."""
    named = module.named_parameters(remove_duplicate=False)
    return {**dict(named), **dict(module.named_buffers(remove_duplicate=False))}


def materialize(model: nn.Module, device: torch.device) -> None:
    """Give what is on "meta" memory of the device: noise by name, and zeros for whole numbers."""
    made: dict[int, torch.Tensor] = {}
    for prefix, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in made:
                    content = torch.zeros_like(tensor, device=device)
                    if content.is_floating_point():
                        draw(f"{prefix}.{key}", content, device)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(content, False) if is_parameter else content
                table[key] = made[id(tensor)]
