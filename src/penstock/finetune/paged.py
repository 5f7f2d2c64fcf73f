# SPDX-License-Identifier: Apache-2.0
"""The engine of one GPU with Penstock's pager: weights and optimizer state beyond the budget.

The loop is the ordinary one; parameters are updated within backward, as soon as their gradients are
whole, which changes no result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from penstock.runner.device import RunDevice
from penstock.torch.training import attach_training

from .engine import Engine
from .request import Request


class Paged(Engine):
    """Everything of a step but where weights and optimizer state are."""

    def __init__(self, request: Request, model: nn.Module, device: RunDevice) -> None:
        super().__init__(request, model, device)
        self._attachment: Any = None
        self._attach()

    def _attach(self) -> None:
        settings = self.request.settings
        self._attachment = attach_training(
            self.model,
            self.optimizer,
            gpu_memory=settings.gpu_memory,
            device=self.device.name,
            emulated=self.device.emulated or None,
        )

    @contextmanager
    def _ordinary(self) -> Iterator[None]:
        """An ordinary model and optimizer on the CPU, for as long as the context lasts."""
        self._attachment.detach()
        try:
            yield
        finally:
            self._attach()

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state, from host memory."""
        with self._ordinary():
            super().save(folder)

    def load(self, folder: Path) -> None:
        """Read them back into host memory."""
        with self._ordinary():
            super().load(folder)

    def alive(self) -> list[Tensor]:
        """What the pager serves is not torch's: buffers alone, and what stays outside."""
        return list(self.model.buffers())

    def stats(self) -> dict[str, Any]:
        """The pager's counters."""
        stats: dict[str, Any] = self._attachment.stats()
        return stats

    def close(self) -> None:
        """Give the device back; the model is not wanted any more."""
        self._attachment.detach(keep=False)
