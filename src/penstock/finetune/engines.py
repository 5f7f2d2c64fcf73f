# SPDX-License-Identifier: Apache-2.0
"""Which engine runs a request; heavy ones are imported only when they do."""

from __future__ import annotations

from torch import nn

from penstock.runner.device import RunDevice

from .engine import Engine
from .group import Group
from .request import Request


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
