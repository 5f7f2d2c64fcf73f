# SPDX-License-Identifier: Apache-2.0
"""The engine of DeepSpeed: ZeRO in its stages, with DeepSpeed's own offload to the host.

DeepSpeed keeps fp32 master weights itself, so under "mixed" the model is bf16.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import FailedError

from .data import Batch
from .engine import Engine
from .request import Request


class Zero(Engine):
    """Forward, backward and step through a DeepSpeed engine."""

    autocasts = False  # the model is bf16 as it is

    def _make_optimizer(self) -> torch.optim.Optimizer:
        import deepspeed

        if not self.device.is_cuda:
            # It would compile collectives over shared memory first, for a minute or more. Gloo has
            # them too, and a process killed meanwhile leaves a lock that all others wait for.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.forward, *_ = deepspeed.initialize(
            model=self.model, model_parameters=trained, config=config_of(self.request)
        )
        optimizer: torch.optim.Optimizer = self.forward.optimizer
        return optimizer

    def step(self, batch: Batch) -> Tensor:
        """Forward, backward, update; the loss before the update."""
        loss = self.loss_of(batch)
        self.forward.backward(loss)
        self.forward.step()
        return loss.detach()

    def recover(self) -> None:
        """After a step that ran out of memory: let go of what it had made."""
        self.forward.zero_grad()

    def save(self, folder: Path) -> None:
        """Every process writes its share, in DeepSpeed's own format."""
        self.forward.save_checkpoint(str(folder), tag="zero")

    def load(self, folder: Path) -> None:
        """Every process reads its share."""
        path, _ = self.forward.load_checkpoint(str(folder), tag="zero")
        if path is None:
            raise FailedError(f"{folder} holds no checkpoint of DeepSpeed")


def config_of(request: Request) -> dict[str, Any]:
    """DeepSpeed's configuration for a request: the work of the other engines, else its defaults."""
    stage = request.zero
    sharding: dict[str, Any] = {"stage": stage, "contiguous_gradients": True}
    if stage == 3:
        sharding["overlap_comm"] = True
    if request.ways.offload:
        place = {"device": "cpu", "pin_memory": True}
        sharding["offload_optimizer"] = place
        if stage == 3:
            sharding["offload_param"] = place
    adam: dict[str, Any] = {"lr": request.learning_rate, "weight_decay": 0.01}
    if not request.ways.offload:  # on the host DeepSpeed's own AdamW is the fast one
        adam["torch_adam"] = True
    return {
        "train_micro_batch_size_per_gpu": request.batch,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": request.dtype != "float32"},
        "optimizer": {"type": "AdamW", "params": adam},
        "zero_optimization": sharding,
        # Else DeepSpeed scales all gradients down to a norm of 1, which no other engine here does.
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
    }
