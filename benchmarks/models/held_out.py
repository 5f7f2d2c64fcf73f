# SPDX-License-Identifier: Apache-2.0
"""Models that nobody here wrote, by their configuration, with random weights.

Each `Subject` is an architecture of transformers or diffusers in two sizes: that of a benchmark on
a GPU, and a few layers of width 64. Weights follow from their names alone, so that a model that
lies on the GPU and one that is filled by attach() hold the same bits without a copy of either.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from kit.measure import default_dtype
from torch import nn

from models.shapes import SHAPES, Shape

SLICE = 1 << 24  # elements drawn at once: few bytes of the GPU beside the model


@dataclass
class Subject:
    """One architecture in one size.

    Attributes:
        name: What it is called in results.
        shape: Its classes, and what a pass takes.
        sizes: Keywords of the configuration.
    """

    name: str
    shape: Shape
    sizes: dict[str, Any]
    dtype: torch.dtype = torch.bfloat16
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    first_names: dict[str, str] = field(default_factory=dict)
    plain: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict)

    @property
    def generates(self) -> bool:
        """Whether generate() makes tokens."""
        return self.shape.generates

    def build(self, device: str | torch.device) -> nn.Module:
        """The model with whatever weights its constructor leaves."""
        shape = self.shape
        library = importlib.import_module("transformers" if shape.config else "diffusers")
        kind = getattr(library, shape.model)
        with default_dtype(self.dtype), torch.device(device):
            if shape.config is None:
                model = kind(**self.sizes).eval()
            else:
                model = kind(getattr(library, shape.config)(**self.sizes)).eval()
        for prefix, module in model.named_modules():
            for key, value in plain_tensors(module):
                if value.is_meta:  # which load() is not asked for
                    setattr(module, key, self.plain[prefix, key])
        if self.generates:  # as many tokens as are asked for, whatever they are
            model.generation_config.eos_token_id = None
            model.generation_config.pad_token_id = 0
        return model

    def resident(self, device: str | torch.device) -> nn.Module:
        """The model on a device, with its weights."""
        model = self.build(device)
        first: dict[int, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.first_names[name] = first.setdefault(id(parameter), name)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                draw(name, parameter.data, device)
        self.buffers = {name: buffer.cpu() for name, buffer in model.named_buffers()}
        for prefix, module in model.named_modules():
            self.plain.update({(prefix, k): x.cpu() for k, x in plain_tensors(module)})
        return model

    def loader(self, device: str | torch.device) -> Callable[[str, torch.Tensor], None]:
        """What fills a model on "meta" with the weights of one that was resident before."""

        def load(name: str, destination: torch.Tensor) -> None:
            if name in self.buffers:
                destination.copy_(self.buffers[name])
            else:
                draw(self.first_names[name], destination, device)
            if torch.device(device).type == "cuda":  # what was drawn is no part of the model
                torch.cuda.empty_cache()

        return load

    def make_inputs(self, model: nn.Module, batch: int, length: int, device: Any) -> dict[str, Any]:
        """A pass's inputs on a device; the same for the same batch and length."""

        def place(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: place(inner) for key, inner in value.items()}
            if not isinstance(value, torch.Tensor):
                return value
            return value.to(device, self.dtype if value.is_floating_point() else None)

        return {k: place(v) for k, v in self.shape.inputs(model.config, batch, length).items()}


def plain_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Tensors that are attributes and nothing else, such as tables of angles."""
    return [(key, x) for key, x in vars(module).items() if isinstance(x, torch.Tensor)]


def draw(name: str, destination: torch.Tensor, device: str | torch.device) -> None:
    """Fill a tensor with noise that follows from its name."""
    mean = 1.0 if destination.dim() < 2 and name.endswith("weight") else 0.0
    flat = destination.view(-1)
    generator = torch.Generator(device)
    for start in range(0, flat.numel(), SLICE):
        piece = flat[start : start + SLICE]
        generator.manual_seed(zlib.crc32(f"{name} {start}".encode()))
        drawn = torch.empty(piece.shape, dtype=piece.dtype, device=device)
        piece.copy_(drawn.normal_(mean, 0.02, generator=generator))


def outputs(result: Any) -> list[torch.Tensor]:
    """The tensors that a pass gives, without its cache."""
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [value for value in values if isinstance(value, torch.Tensor)]


def subject(name: str, *, small: bool = False, **more: Any) -> Subject:
    """One of SHAPES; `more` replaces parts of its configuration."""
    return of_shape(name, SHAPES[name], small=small, **more)


def of_shape(name: str, shape: Shape, *, small: bool, **more: Any) -> Subject:
    """One of any shape."""
    sizes = {**(shape.little() if small else shape.full), **more}
    dtype = torch.float32 if small else torch.bfloat16
    return Subject(name, shape, sizes, dtype)
