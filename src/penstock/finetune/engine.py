# SPDX-License-Identifier: Apache-2.0
"""Who runs a step: the contract, and the engine of one GPU.

Every engine takes the same batch and gives the same loss; forward, backward and AdamW are torch's.
`distributed` has the engines of several processes, `zero` DeepSpeed's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.runner.device import RunDevice

from .data import Batch
from .group import Group
from .request import Request
from .weights import load_optimizer, load_weights, save_optimizer, save_weights


class Engine:
    """The engine of one GPU with everything resident; others change what differs.

    Args:
        request: A checked request.
        model: On its device, in training mode.
        device: Where it runs.

    Attributes:
        threads: Whether backward runs in autograd's own thread, and not in the caller's. There
            Python (checkpoints, hooks, fused ops) takes longer, for the interpreter's lock goes to
            and fro, and so do a core's caches: 18 % of a step of 1.5B with all layers fused.
        autocasts: Whether forward of mixed dtypes takes autocast to be so.
    """

    threads = False
    autocasts = True

    def __init__(self, request: Request, model: nn.Module, device: RunDevice) -> None:
        self.request = request
        self.model = model
        self.forward: Any = model
        self.device = device
        # Shown the gradients when the backward pass is over: DDP makes them out of sight.
        self.look: Callable[[Iterable[Tensor]], None] = lambda tensors: None
        self.optimizer = self._make_optimizer()

    def _make_optimizer(self) -> torch.optim.Optimizer:
        """AdamW over what is trained, in fused kernels."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=self.request.learning_rate, fused=True)

    def start(self) -> None:
        """Called once before the first step, when a checkpoint, if there is one, is loaded."""

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 for what gains by it, where weights are fp32.

        Autocast's cache would keep a bf16 copy of every weight until the pass is over (3.1 GB of
        GPT-2 XL), and no weight of these models is cast twice in a pass.
        """
        if self.request.dtype != "mixed" or not self.autocasts:
            return nullcontext()
        return torch.autocast(
            self.device.torch_device.type, dtype=torch.bfloat16, cache_enabled=False
        )

    def loss_of(self, batch: Batch) -> Tensor:
        """Mean cross entropy of the next token."""
        with self.autocast():
            output = self.forward(input_ids=batch.tokens, labels=batch.labels, use_cache=False)
        loss: Tensor = output.loss
        return loss

    def step(self, batch: Batch) -> Tensor:
        """Forward, backward, update; the loss before the update, a scalar on the device."""
        loss = self.loss_of(batch)
        with torch.autograd.set_multithreading_enabled(self.threads):
            loss.backward()  # type: ignore[no-untyped-call]
        self.look(self.gradients())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def gradients(self) -> list[Tensor]:
        """What backward has left for the update."""
        return [each.grad for each in self.model.parameters() if each.grad is not None]

    @torch.no_grad()
    def evaluate(self, batches: list[Batch]) -> float:
        """The mean loss of a token over these batches; dropout is off, nothing is drawn."""
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64)
        count = 0
        for batch in batches:
            placed = batch.to(self.device.torch_device)
            predicted = placed.count - len(placed.tokens)  # the first token has nothing before it
            total += self.loss_of(placed).double().cpu() * predicted
            count += predicted
        self.model.train()
        return float(total) / max(1, count)

    def recover(self) -> None:
        """After a step that ran out of memory: let go of what it had made."""
        self.optimizer.zero_grad(set_to_none=True)

    def begin_anew(self) -> None:
        """Hold what there is before a first step: the optimizer's state is made within that."""
        self.recover()
        self.optimizer.state.clear()

    def alive(self) -> list[Tensor]:
        """Tensors on the device that outlive a step, and are not the pager's."""
        states = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        return [*self.model.parameters(), *self.model.buffers(), *states]

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state into a folder that is there."""
        save_weights(self.model, folder, adapters=self.request.ways.lora)
        save_optimizer(self.optimizer, folder)

    def load(self, folder: Path) -> None:
        """Read them back."""
        load_weights(self.model, folder, adapters=self.request.ways.lora)
        load_optimizer(self.optimizer, folder)

    def stats(self) -> dict[str, Any]:
        """Counters of the pager; empty where none serves."""
        return {}

    def close(self) -> None:
        """Give back what is not freed by itself."""


def make_engine(request: Request, model: nn.Module, device: RunDevice, group: Group) -> Engine:
    """The engine of a request, with the model and its optimizer; heavy ones are imported here."""
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
