# SPDX-License-Identifier: Apache-2.0
"""Which engine runs a request; heavy ones are imported only when they do."""

from __future__ import annotations

import importlib.util

from torch import nn

from penstock.errors import EnvironmentProblem
from penstock.runner.device import RunDevice

from .engine import Engine
from .group import Group
from .request import Request


def check_engine(request: Request) -> None:
    """Refuse an engine that is not installed, before anything is built.

    Raises:
        EnvironmentProblem: With the extra that brings it.
    """
    if request.zero is not None and importlib.util.find_spec("deepspeed") is None:
        raise EnvironmentProblem(
            "--zero needs deepspeed, which is not installed",
            remedy="pip install 'penstock[finetune,deepspeed]', or --fsdp",
        )
    if request.paged and importlib.util.find_spec("penstock.torch.training") is None:
        raise EnvironmentProblem(
            "this build has no pager for training: neither O nor --gpu-memory on one GPU",
            remedy="--memory resident with --gpu-memory, or --fsdp",
        )


def make_engine(request: Request, model: nn.Module, device: RunDevice, group: Group) -> Engine:
    """The engine, with the model and its optimizer in it."""
    if request.zero is not None:
        from .zero import Zero

        return Zero(request, model, device)
    if request.engine in ("fsdp", "ddp"):
        from .distributed import Replicated, Sharded

        if request.fsdp:
            return Sharded(request, model, device, group)
        return Replicated(request, model, device, group)
    if request.paged:
        from .paged import Paged

        return Paged(request, model, device)
    return Engine(request, model, device)
