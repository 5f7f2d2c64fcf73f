# SPDX-License-Identifier: Apache-2.0
"""Engines of several processes: DDP, which copies the model, and FSDP2, which shards it.

Both are PyTorch's own. FSDP2's offload keeps shards, gradients and the optimizer on the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from penstock.runner.device import RunDevice

from .engine import Engine
from .group import Group
from .model import layers_of
from .request import Request


class Replicated(Engine):
    """The whole model on every process; gradients are averaged."""

    threads = True  # as PyTorch has it: not measured otherwise

    def __init__(self, request: Request, model: nn.Module, device: RunDevice, group: Group) -> None:
        super().__init__(request, model, device)
        ordinals = [device.torch_device.index] if device.is_cuda else None
        self.forward = DistributedDataParallel(
            model, device_ids=ordinals, gradient_as_bucket_view=True
        )
        self._group = group

    def save(self, folder: Path) -> None:
        """All processes hold the same; the first one writes."""
        if self._group.leads:
            super().save(folder)


class Sharded(Engine):
    """FSDP2: every process holds a share of each layer, gathered when the layer runs."""

    threads = True
    autocasts = False  # FSDP2 gathers weights in bf16 itself

    def __init__(self, request: Request, model: nn.Module, device: RunDevice, group: Group) -> None:
        mesh = init_device_mesh(device.torch_device.type, (group.world,))
        options: dict[str, Any] = {"mesh": mesh}
        if request.dtype == "mixed":
            options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        if request.ways.offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.is_cuda)
        for layer in layers_of(model):
            fully_shard(layer, **options)
        fully_shard(model, **options)
        super().__init__(request, model, device)

    def alive(self) -> list[Tensor]:
        """Shards, and what else outlives a step."""
        return [getattr(tensor, "_local_tensor", tensor) for tensor in super().alive()]

    def save(self, folder: Path) -> None:
        """Every process writes its shards."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Every process reads its shards."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        load(state, checkpoint_id=folder)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
