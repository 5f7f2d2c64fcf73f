# SPDX-License-Identifier: Apache-2.0
"""Activations of a model in training: they leave where a step has more of them than there is room.

What room there is follows from the budget's manager, and how it is divided from room.py; what
leaves, and when it comes back, is saving.py's. With room, nothing is hooked: passes of a kind that
has been seen to fit run as they would without.

Thread rule: as of the attachment.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import nn

from penstock.errors import OutOfMemory

from ..emulated_memory import EmulatedMemory
from ..manager import Manager
from ..share import Share
from .copies import Copies, CudaCopies
from .host_buffers import HostBuffers
from .recomputation import REPLACED
from .room import Bounds, Room, Seen
from .saving import Saving, may_push

AUTO, KEEP = "auto", "keep"
LAST = (
    "activation_bytes", "activation_bytes_out", "activation_bytes_in", "activation_host_bytes",
)  # fmt: skip
_REFUSED = "don't yet support saved tensor hooks"  # by torch.func's transforms


class Activations:
    """The activations of one model.

    Attributes:
        saving: Lets them leave and come back.
        last: Bytes of the last step, under the names of TrainingStats.

    Args:
        model: It.
        choice: AUTO, or KEEP to let nothing leave.
        device: PyTorch's device.
        manager: Of the budget.
        share: The model's part in it.
        least: Tells the bytes that weights and state cannot do without.
        weights: Bytes of the model's weights.
        check_host: Called with the bytes of host memory about to be asked for; raises if that is
            too much.
    """

    def __init__(
        self,
        model: nn.Module,
        choice: str,
        device: torch.device,
        manager: Manager,
        share: Share,
        *,
        least: Callable[[], int],
        weights: int,
        check_host: Callable[[int], None],
    ) -> None:
        self._auto = choice == AUTO
        self._manager = manager
        self._share = share
        self._least = least
        self._room = Room(weights)
        copies: Copies
        stream: Callable[[], int]
        if isinstance(manager.torch, EmulatedMemory):
            copies, stream = Copies(manager.torch.count), lambda: 0
        else:
            copies = CudaCopies(device)
            stream = partial(torch._C._cuda_getCurrentRawStream, device.index)
        self._buffers = HostBuffers(pinned=copies.pinned, budget=share.bytes, check_host=check_host)
        self.saving = Saving(
            device,
            copies,
            self._buffers,
            live=self._live,
            stream=stream,
            budget=share.bytes,
            stay=[*model.parameters(), *model.buffers()],
        )
        self._uninstall = weakref.finalize(self, REPLACED.install()) if self._auto else None
        self._passing: tuple[Hashable, int] | None = None
        self._running = False  # a forward that a backward may follow
        self._watched = False  # in the step's last forward
        self._learning = False
        self._peak_first: int | None = None  # of tensors, where backward has turned
        self._before = 0
        self._foreign = 0  # bytes of tensors that no budget counts
        self._pending = self._together = 0  # forward passes before a backward
        self.last: dict[str, Any] = dict.fromkeys(LAST, 0)

    @property
    def pending(self) -> bool:
        """Whether a forward has run that no backward has followed."""
        return self._pending > 0

    def _bounds(self) -> Bounds:
        total = self._manager.room_for(self._share.has(), 0)
        return Bounds(total, self._least(), self._manager.slack)

    def _live(self) -> int:
        """Bytes of tensors in what is counted; what is not hardly changes within a pass."""
        return max(0, self._manager.torch.live() - self._foreign)

    def pass_begins(self, key: Hashable, size: int, inputs: list[torch.Tensor]) -> None:
        """A forward that a backward may follow begins; inputs as of Share.begins()."""
        self._passing = key, size
        self._running = True
        self._pending += 1
        self._together = max(self._together, self._pending)
        self._foreign = self._manager.before()
        self._before = self._live()
        self._watched = False
        self._peak_first = None
        if not self._auto:
            return
        decided = self._room.begins(key, size, self._bounds(), self._before)
        self.saving.end()  # of one that was interrupted
        if decided is not None and may_push():
            self._watched = True
            self._learning = decided.learning
            self.saving.begin(decided, inputs, self._turns)

    def _turns(self) -> None:
        """Backward goes on without what the end of forward has taken."""
        if self._learning:
            self._manager.torch.empty_cache()
        self._peak_first = self._manager.split_peak()

    def pass_ends(self, error: BaseException | None) -> bool:
        """A pass is over, with or without an error; whether a step breaks off with it."""
        if not self._running:  # no backward would have followed
            return False
        self._running = False
        self.saving.end()
        if error is None:
            return False
        self.failed(error)
        if self._watched and isinstance(error, RuntimeError) and _REFUSED in str(error):
            error.args = (
                f"{error.args[0]}\nactivations of the attached model may leave the device: "
                f'attach_training(..., activations="{KEEP}") keeps them there',
                *error.args[1:],
            )
        return True

    def failed(self, error: BaseException | None) -> None:
        """The step is given up: no backward, or no update, follows."""
        self._pending = 0
        memory = isinstance(error, torch.OutOfMemoryError | OutOfMemory)
        if memory and self._auto and self._passing is not None:
            self._room.failed(*self._passing, self._bounds())

    def make_room(self, nbytes: int) -> bool:
        """A use finds no room: let so many bytes leave, or what can; whether any have.

        And a little more, for what its operators make.
        """
        if nbytes <= 0 or not self.saving.make_room(nbytes + self._manager.slack):
            return False
        self._manager.torch.empty_cache()
        return True

    def backward_ends(self) -> None:
        """A backward pass is over."""
        self._pending = 0
        self.saving.backward_ends()

    def step_ends(self) -> None:
        """The optimizer has stepped, and the peak of the step is known."""
        saving = self.saving
        moved = saving.most_saved, saving.bytes_out, saving.bytes_in, self._buffers.nbytes
        self.last = dict(zip(LAST, moved, strict=True))
        if self._passing is not None and self._auto:
            known = self._learning and self._peak_first is not None
            seen = Seen(
                before=self._before,
                peak=self._manager.peak(),
                watched=self._watched,
                left=saving.left,
                left_again=saving.left_again,
                most_saved=saving.most_saved,
                most_there=saving.most_there,
                together=self._together,
                peak_first=self._peak_first,
                peak_later=self._manager.later_peak() if known else None,
            )
            if self._room.ends(*self._passing, self._bounds(), seen):
                self._manager.torch.empty_cache()
        self._passing = None
        self._pending = self._together = 0
        saving.step_ends()

    def close(self) -> None:
        """No hook of ours stays; what is away comes back to whoever still asks for it.

        The device is at rest.
        """
        self.saving.close()
        self._buffers.close()
        if self._uninstall is not None:
            self._uninstall()
