# SPDX-License-Identifier: Apache-2.0
"""What a run asked of its allocator: from the allocator itself, or from a replay of its work.

Both meters give the same figures. On a GPU they are those of `torch.cuda.memory_stats()`, which
all three allocators fill in. On the emulated GPU nothing was allocated on a device: the
allocations of the tensors are recorded and replayed, and `source` says "replayed".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import OutOfMemory
from penstock.native.replay import Replayed, replay
from penstock.report.result import Curve
from penstock.runner.device import MemoryWatch, RunDevice
from penstock.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .recorder import AllocationRecorder

# What torch's allocators round a block up to.
ROUNDING = 512
# The least that an allocator takes of a device.
SMALLEST = 2 * MIB
# Points of a replayed curve.
POINTS = 200
# Events after which nothing more is recorded: 100 MB of them, thousands of steps of a small model.
MOST_EVENTS = 5_000_000


@dataclass(frozen=True)
class MemoryFigures:
    """Peaks of a run, in bytes.

    Attributes:
        source: "allocator" or "replayed".
        requested: What tensors asked for.
        active: What their blocks took, until their last use was over.
        reserved: What the allocator held of the device.
        device: What the driver says was taken, without the context; None where there is none.
        curve: Memory over time.
        driver_calls: Calls of the driver that the allocator had made, of its own count, at each
            point of the curve; torch's counts those that take or give back a segment. Empty where
            there is none.
        counters: What Penstock's allocator counted, at the end; empty under another one.
    """

    source: str
    requested: int
    active: int
    reserved: int
    device: int | None
    curve: Curve
    driver_calls: list[int] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def utilisation(self) -> float:
        """Peak requested over peak reserved."""
        return self.requested / self.reserved if self.reserved else 0.0


class CudaMeter:
    """Asks torch's allocator, whichever it is, after every step; the driver too.

    Within a step that trains beyond its budget PyTorch's cache may be given back, and the pager
    takes the room: so the driver is asked all the time in the first steps, which no rate counts.

    Args:
        device: A CUDA device.
        watched: How many steps that are.
    """

    def __init__(self, device: RunDevice, watched: int) -> None:
        self._device, self._watched = device, watched
        self._watch = MemoryWatch(device)
        self.restart()

    def restart(self) -> None:
        """Forget the peaks so far."""
        torch.cuda.empty_cache()
        self._watch.restart()
        torch.cuda.reset_peak_memory_stats(self._device.torch_device)
        self._peaks = {"requested_bytes": 0, "active_bytes": 0, "reserved_bytes": 0}
        self._curve = Curve()
        self._driver_calls: list[int] = []
        self._counters: dict[str, int] = {}
        self._steps = 0
        self._begin = time.perf_counter()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Look when the step is over, however it ends."""
        watched = self._steps < self._watched
        self._steps += 1
        try:
            with self._watch.watching() if watched else nullcontext():
                yield
        finally:
            self._look()

    def _look(self) -> None:
        stats = torch.cuda.memory_stats(self._device.torch_device)
        for name in self._peaks:
            peak = int(stats.get(f"{name}.all.peak", 0))
            self._peaks[name] = max(self._peaks[name], peak)
        self._watch.look()
        self._curve.ms.append((time.perf_counter() - self._begin) * 1e3)
        self._curve.requested.append(int(stats.get("requested_bytes.all.peak", 0)))
        self._curve.reserved.append(int(stats.get("reserved_bytes.all.current", 0)))
        self._driver_calls.append(driver_calls(stats))
        self._counters = allocator_counters(stats)
        torch.cuda.reset_peak_memory_stats(self._device.torch_device)

    def note(self) -> str:
        """Bytes that the allocator holds now, for a progress bar."""
        return format_bytes(torch.cuda.memory_reserved(self._device.torch_device))

    def figures(self) -> MemoryFigures:
        """The peaks of all steps so far, and of what came before them."""
        self._look()
        return MemoryFigures(
            "allocator",
            self._peaks["requested_bytes"],
            self._peaks["active_bytes"],
            self._peaks["reserved_bytes"],
            self._watch.peak,
            self._curve,
            self._driver_calls,
            self._counters,
        )


class ReplayMeter:
    """Records allocations and replays them on an allocator.

    Args:
        recorder: Holds what was alive before the first step.
        allocator: Which.
        packing: Options of the stitching allocator.
    """

    def __init__(
        self, recorder: AllocationRecorder, allocator: str, packing: Mapping[str, int | float]
    ) -> None:
        self._recorder = recorder
        self._allocator = allocator
        self._packing = packing

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Count what is alive before the first step."""
        self._recorder.adopt(tensors)

    def restart(self) -> None:
        """A recording has no peaks until it is replayed."""

    def step(self) -> AbstractContextManager[Any]:
        """Record the step."""
        return self._recorder if len(self._recorder) < MOST_EVENTS else nullcontext()

    def note(self) -> str:
        """Bytes of the tensors that are there; what an allocator holds, the replay tells."""
        return format_bytes(self._recorder.alive_bytes)

    def replayed(self, capacity: int = 0, points: int = 0) -> Replayed:
        """The recording on the allocator, with `capacity` bytes (0: as many as it takes)."""
        return replay(
            self._recorder.trace("the recorded steps"),
            allocator=self._allocator,
            capacity=capacity,
            packing=self._packing if self._allocator == "stitch" else None,
            points=points,
        )

    def figures(self) -> MemoryFigures:
        """What the replay says."""
        if not len(self._recorder):  # no step was left to do, and the pager has everything else
            return MemoryFigures("replayed", 0, 0, 0, None, Curve())
        done = self.replayed(points=POINTS)
        curve = Curve()
        for micros, requested, reserved in done.curve:
            curve.ms.append(micros / 1e3)
            curve.requested.append(requested)
            curve.reserved.append(reserved)
        return MemoryFigures(
            "replayed",
            done.figures["peak_requested_bytes"],
            self._active(),
            done.figures["peak_reserved_bytes"],
            None,
            curve,
        )

    def _active(self) -> int:
        """The most bytes of blocks at one moment, each rounded up as torch does."""
        trace = self._recorder.trace("the recorded steps")
        sizes = (trace.size.astype(np.int64) + ROUNDING - 1) // ROUNDING * ROUNDING
        change = np.where(trace.op == 0, sizes, np.where(trace.op == 2, -sizes, 0))
        return int(np.cumsum(change).max(initial=0))


Meter = CudaMeter | ReplayMeter


@dataclass(frozen=True)
class Budget:
    """The budget of a run on the emulated GPU, which nothing but a replay holds it to.

    Attributes:
        bytes: Device memory for everything.
        pager: Bytes of it that the pager needs at least: its largest layer, with its state.
        meter: Makes a meter with nothing recorded.
    """

    bytes: int
    pager: int
    meter: Callable[[], ReplayMeter]

    def holds(self, meter: ReplayMeter) -> bool:
        """Whether what was recorded fits.

        Beside the pager it is enough that the bytes fit: its chunks may be smaller than those that
        an allocator takes, so that a tiny model can be paged at all.
        """
        if self.pager:
            peak: int = meter.replayed().figures["peak_requested_bytes"]
            return peak <= self.bytes - self.pager
        if self.bytes < SMALLEST:
            return False
        return meter.replayed(capacity=self.bytes).failed_event is None


def largest_layer_bytes(model: nn.Module) -> int:
    """Bytes of one module's own weights and of AdamW's state of them: the least to be there."""
    most = 0
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        most = max(most, sum(each.nbytes * (3 if each.requires_grad else 1) for each in own))
    return most


def driver_calls(stats: Mapping[str, int]) -> int:
    """Calls of the driver, by what `torch.cuda.memory_stats()` gives under any allocator."""
    segments = int(stats.get("num_device_alloc", 0)) + int(stats.get("num_device_free", 0))
    return int(stats.get("penstock.driver_calls", segments))


def allocator_counters(stats: Mapping[str, int]) -> dict[str, int]:
    """What `torch.cuda.memory_stats()` gives under Penstock's allocator alone."""
    own = ((name.split("."), count) for name, count in stats.items())
    return {name[1]: int(count) for name, count in own if name[0] == "penstock" and len(name) == 2}


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is what torch, a library under it or the pager says of a full device."""
    return isinstance(error, (torch.OutOfMemoryError, OutOfMemory)) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
    )
