# SPDX-License-Identifier: Apache-2.0
"""The device of a run: which it is, its clock, its memory by the driver's own word.

Invariant: on the emulated GPU kernels are ordinary CPU code that is over when a call returns, so
the host's clock is the right one; on CUDA a step is timed by events, and the host waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from penstock.config import Settings, emulated_options
from penstock.errors import EnvironmentProblem, OutOfMemory
from penstock.host import available
from penstock.native import CUDA, EMULATED, Device
from penstock.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
# Enough for the speed of a link; the emulated GPU has none.
LINK_BYTES = {True: 64 * MIB, False: 4 * MIB}
WATCH_EVERY_S = 0.002


@dataclass(frozen=True)
class RunDevice:
    """Where a run takes place.

    Attributes:
        name: "emulated" or "cuda:N", as the rest of Penstock takes it.
        torch_device: Where inputs go.
        label: What it is called, for people.
        emulated: Options of the emulated GPU, as `penstock.attach` takes them.
    """

    name: str
    torch_device: torch.device
    label: str
    emulated: dict[str, int]

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.torch_device.type == "cuda"

    def timed(self, call: Callable[[], T]) -> tuple[T, float]:
        """Call, wait for the device; the result and how many ms it took."""
        if not self.is_cuda:
            begin = time.perf_counter()
            result = call()
            return result, (time.perf_counter() - begin) * 1e3
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event  # without types of its own
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        result = call()
        end.record()
        end.synchronize()
        return result, start.elapsed_time(end)

    def free_bytes(self) -> int | None:
        """Free device memory by the driver's word; None on the emulated GPU."""
        return torch.cuda.mem_get_info(self.torch_device)[0] if self.is_cuda else None

    def total_bytes(self) -> int | None:
        """All device memory by the driver's word; None on the emulated GPU."""
        return torch.cuda.mem_get_info(self.torch_device)[1] if self.is_cuda else None

    def measure_link(self) -> tuple[float, float]:
        """Speed of page-locked copies in and out, decimal GB/s, where no attachment tells it."""
        if self.is_cuda:
            opened = Device(CUDA, self.torch_device.index)
        else:
            opened = Device(EMULATED, **self.emulated)
        with opened:
            return opened.measure_link(LINK_BYTES[self.is_cuda], 3)


def choose_device(settings: Settings) -> RunDevice:
    """The device that the settings mean.

    Raises:
        EnvironmentProblem: If a GPU is asked for and torch has none of that number.
    """
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "emulated"
    if name == "emulated":
        options = emulated_options(settings)
        return RunDevice(name, torch.device("cpu"), "the emulated GPU", options)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        seen = f"{count} GPUs" if count else "no GPU"
        why = "" if torch.version.cuda else f" (torch {torch.__version__} is a build without CUDA)"
        raise EnvironmentProblem(
            f"--device {settings.device}, but torch sees {seen}{why}",
            remedy="penstock doctor, or --device emulated",
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return RunDevice(f"cuda:{index}", device, torch.cuda.get_device_name(device), {})


def check_batch(device: RunDevice, *, batch: int, tokens: int, vocabulary: int) -> None:
    """Refuse a batch of which not even the logits fit, before anything is made of it.

    Args:
        device: Where it would run.
        batch: Sequences.
        tokens: Of each.
        vocabulary: Logits of a token, of two bytes at the least.

    Raises:
        OutOfMemory: With the numbers, and a batch that might do.
    """
    room = available()
    if device.is_cuda:
        room = torch.cuda.mem_get_info(device.torch_device)[1]
    each = 2 * tokens * vocabulary
    if room is not None and batch * each > room:
        most = room // each
        raise OutOfMemory(
            f"the logits of {batch:,} x {tokens:,} tokens take {format_bytes(batch * each)}, and "
            f"{format_bytes(room)} are there",
            remedy=f"--batch {most} or less" if most else "a smaller --seq-len",
            needed_bytes=batch * each,
            budget_bytes=room,
        )


class MemoryWatch:
    """The most device memory that a run took, by the driver's own free-memory figure.

    Counted from the moment it is made: without the context, with all that PyTorch holds. During
    `watching()` the driver is asked every 2 ms, from a thread; around timed steps, which a thread
    would disturb, `look()` asks once: enough where free memory only falls within a step, because
    PyTorch's allocator keeps what it took, and so does the pager.

    Args:
        device: The device; on the emulated GPU there is nothing to ask, and `peak` is None.
    """

    def __init__(self, device: RunDevice) -> None:
        self._device = device
        if device.is_cuda:
            torch.zeros(1, device=device.torch_device)  # the context comes first
            torch.cuda.empty_cache()
        self._lowest = device.free_bytes()
        self._at_start = None
        if self._lowest is not None:
            # What PyTorch still holds, such as the workspace of an earlier run, is part of ours.
            self._at_start = self._lowest + torch.cuda.memory_reserved(device.torch_device)

    @property
    def peak(self) -> int | None:
        """Bytes taken at the worst moment."""
        if self._at_start is None or self._lowest is None:
            return None
        return max(0, self._at_start - self._lowest)

    def look(self) -> None:
        """Ask now."""
        free = self._device.free_bytes()
        if free is not None and self._lowest is not None:
            self._lowest = min(self._lowest, free)

    def restart(self) -> None:
        """Forget the worst moment so far; what is held now still counts."""
        self._lowest = self._device.free_bytes()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask all the time."""
        if self._at_start is None:
            yield
            return
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(WATCH_EVERY_S):
                self.look()

        thread = threading.Thread(target=watch, name="penstock-memory-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.look()
