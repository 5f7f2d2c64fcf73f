# SPDX-License-Identifier: Apache-2.0
"""Models of torchvision and what they are given, for architectures.py.

Of each module the smallest, but for the quantised ones, with small pictures or a short video.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

SIDE = 128  # of a picture, where the model leaves that open
SIDES = {"Inception3": 299, "MaxVit": 224, "MViT": 224, "S3D": 224}
FRAMES = 16


def builders() -> dict[str, list[str]]:
    """The models of each module of torchvision, but for the quantised ones."""
    from torchvision import models

    found: dict[str, list[str]] = {}
    for name in models.list_models():
        module = models.get_model_builder(name).__module__.removeprefix("torchvision.models.")
        if not module.startswith("quantization"):
            found.setdefault(module, []).append(name)
    return found


def names(_: str) -> list[str]:
    """Those modules."""
    return sorted(builders())


def make(kind: str, module: str) -> Any:
    """The smallest of a module; a detector is not to enlarge its pictures."""
    from torchvision import models

    def size(name: str) -> int:
        return int(next(iter(models.get_model_weights(name))).meta["num_params"])

    name = min(builders()[module], key=size)
    takes = inspect.signature(models.get_model_builder(name)).parameters
    without = {"weights", "weights_backbone"} & set(takes)
    model = models.get_model(name, **dict.fromkeys(without)).train(kind == "train")
    resize = getattr(model, "transform", None)
    if resize is not None and resize.fixed_size is None:
        resize.min_size, resize.max_size = (SIDE,), SIDE
    return model


def marked() -> dict[str, torch.Tensor]:
    """What a detector is to find in a picture: of two things box, mask and three points."""
    masks = torch.zeros(2, SIDE, SIDE, dtype=torch.uint8)
    masks[0, 10:60, 10:60], masks[1, 40:100, 30:120] = 1, 1
    boxes = torch.tensor([[10.0, 10.0, 60.0, 60.0], [30.0, 40.0, 120.0, 100.0]])
    points = torch.full((2, 17, 3), 50.0)
    return {"boxes": boxes, "labels": torch.tensor([1, 1]), "masks": masks, "keypoints": points}


def inputs(model: Any) -> dict[str, Any]:
    """Two for a model of torchvision, or a video."""
    of, side = type(model).__module__, SIDES.get(type(model).__name__, SIDE)
    side = getattr(model, "image_size", side)
    if ".detection" in of:
        given: dict[str, Any] = {"images": [torch.rand(3, SIDE, SIDE) for _ in range(2)]}
        return given | ({"targets": [marked(), marked()]} if model.training else {})
    if ".optical_flow" in of:
        one, other = (torch.randn(1, 3, SIDE, SIDE) for _ in range(2))
        return {"image1": one, "image2": other, "num_flow_updates": 2}
    if ".video" in of or "3d" in type(model).__name__:
        side = side if side != SIDE else SIDE // 2
        return {"x": torch.randn(1, 3, FRAMES, side, side)}
    return {next(iter(inspect.signature(model.forward).parameters)): torch.randn(2, 3, side, side)}
