# SPDX-License-Identifier: Apache-2.0
"""The engine of one GPU with Penstock's pager: weights and optimizer state beyond the budget.

The loop is the ordinary one; parameters are updated within backward, as soon as their gradients are
whole, which changes no result.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from penstock.paging.training import TrainingAttachment, attach_training

from .data import Batch
from .engine import Engine


class Paged(Engine):
    """Everything of a step but where weights and optimizer state are."""

    _attachment: TrainingAttachment | None = None

    def start(self) -> None:
        """Move weights, and state that was loaded, into the pager's blocks."""
        settings = self.request.settings
        self._attachment = attach_training(
            self.model,
            self.optimizer,
            gpu_memory=settings.gpu_memory,
            device=self.device.name,
            emulated=self.device.emulated or None,
            step_in_backward=True,  # nothing in this loop looks at gradients
        )

    def step(self, batch: Batch) -> Tensor:
        """That of the ordinary loop; modes are left in the order in which they were entered."""
        try:
            return super().step(batch)
        except BaseException:
            if self._attachment is not None:
                self._attachment.leave_watch()
            raise

    def begin_anew(self) -> None:
        """The optimizer's state is the pager's: made once, and moved to where there is room."""
        self.recover()

    def gradients(self) -> list[Tensor]:
        """None: backward has used them."""
        return []

    def alive(self) -> list[Tensor]:
        """What the pager serves is not torch's: buffers alone, and what stays outside."""
        return list(self.model.buffers())

    def stats(self) -> dict[str, Any]:
        """The pager's counters."""
        return asdict(self._attachment.stats()) if self._attachment is not None else {}

    def recover(self) -> None:
        """After a step that ran out of memory: let go of what it had made."""
        super().recover()
        if self._attachment is not None:
            self._attachment.abandon_step()

    def close(self) -> None:
        """Give the device back; the model is not wanted any more."""
        if self._attachment is not None:
            self._attachment.detach(keep=False)
