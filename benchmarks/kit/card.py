# SPDX-License-Identifier: Apache-2.0
"""The card that models are measured on: memory by NVML, times, bits, and the ideal.

`Card(small=True)` is the emulated GPU: no CUDA, times that say nothing, and no ideal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

import penstock
from kit.measure import MemoryWatch, release
from penstock.bound import shortest_ms
from penstock.units import KIB, MIB

SAMPLE_S = 0.005  # between two looks at the device's memory
COMPARED = 32 * MIB  # bytes compared at once: little beside what a pass needs


class Card:
    """One device, real or emulated."""

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.device = torch.device("cpu" if small else "cuda:0")
        self.warmups, self.steps = (2, 3) if small else (4, 12)
        if not small:
            import pynvml

            torch.zeros(1, device=self.device)
            pynvml.nvmlInit()
            self._nvml = pynvml
            name = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
            try:
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(name)
            except pynvml.NVMLError:
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def used(self) -> int:
        """Bytes of device memory in use, by whomever."""
        return 0 if self.small else int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def reserved(self) -> int:
        return 0 if self.small else torch.cuda.memory_reserved(self.device)

    def clear(self) -> None:
        """Give back what only caches hold."""
        release()

    def synchronize(self) -> None:
        if not self.small:
            torch.cuda.synchronize(self.device)

    def allocated(self) -> int:
        """Bytes that PyTorch has handed out."""
        return 0 if self.small else torch.cuda.memory_allocated(self.device)

    def forget_peak(self) -> None:
        if not self.small:
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Bytes allocated from PyTorch at the peak since forget_peak()."""
        return 0 if self.small else torch.cuda.max_memory_allocated(self.device)

    def time(self, step: Callable[[], Any], *, steps: int = 0, warmups: int = -1) -> list[float]:
        """Milliseconds of each step; the host waits for one before it gives the next."""
        samples = []
        warmups = self.warmups if warmups < 0 else warmups
        for number in range(warmups + (steps or self.steps)):
            self.synchronize()
            began = time.perf_counter()
            step()
            self.synchronize()
            if number >= warmups:
                samples.append((time.perf_counter() - began) * 1e3)
        return samples

    def options(self, budget: int) -> dict[str, Any]:
        """What attach() is told of the device."""
        if not self.small:
            return {"device": str(self.device)}
        capacity = max(2 * budget, 4 * MIB)
        return {
            "device": "emulated",
            "emulated": {"capacity": capacity, "granularity": 64 * KIB},
            "chunk_size": 64 * KIB,
        }

    def budget(self, full: str, weights: int, small_share: float = 0.5) -> str | int:
        """A budget in words; of a small model, a share of what it weighs."""
        return int(weights * small_share) if self.small else full

    @contextmanager
    def attached(
        self, model: Any, budget: int, *, keep: bool = False, **more: Any
    ) -> Iterator[tuple[Any, PeakWatch]]:
        """Attach for a while, and watch the device's memory meanwhile.

        What PyTorch holds already is the benchmark's own: it is added to the budget and taken
        off the peak. Without `keep` the model is left empty.
        """
        self.clear()
        with PeakWatch(self) as watch:
            held = penstock.attach(
                model, gpu_memory=budget + watch.kept, **{**self.options(budget), **more}
            )
            try:
                yield held, watch
                watch.note(held)
            finally:
                held.detach(keep=keep)
        self.clear()


class PeakWatch(MemoryWatch):
    """The most device memory in use while it watches, beyond what was in use before.

    Attributes:
        kept: Bytes that PyTorch's allocator held when it began.
    """

    def __init__(self, card: Card) -> None:
        super().__init__(card.used, SAMPLE_S)
        self._card, self.kept, self._emulated = card, card.reserved(), 0

    def note(self, attachment: Any) -> None:
        """On the emulated GPU only the attachment knows."""
        if self._card.small:
            self._emulated = attachment.stats().peak_device_bytes

    def peak(self) -> int:
        """Bytes so far."""
        return max(self.highest - self.before, self._emulated)


def ideal(resident_ms: float, touched: list[int], room: int, link: float) -> dict[str, Any]:
    """max(T, X / B), with X the sum of max(0, M - S) over the passes of a step."""
    missing = sum(max(0, size - max(0, room)) for size in touched)
    return {
        "ideal_ms": round(shortest_ms(resident_ms, (missing, link)), 3),
        "missing_bytes": missing,
        "room_bytes": room,
        "link_gb_per_s": round(link, 2),
    }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same_bits(results: list[torch.Tensor], references: list[torch.Tensor]) -> bool:
    """Whether all tensors are the same, compared where the results are, piece by piece."""
    if len(results) != len(references):
        return False
    for result, reference in zip(results, references, strict=True):
        if result.shape != reference.shape or result.dtype != reference.dtype:
            return False
        one, other = _bits(result), _bits(reference)
        for start in range(0, one.numel(), COMPARED):
            piece = other[start : start + COMPARED].to(one.device)
            if not torch.equal(one[start : start + COMPARED], piece):
                return False
    return True


def digest(results: list[torch.Tensor]) -> int:
    """A number that depends on every bit and its place, where references would be too many."""
    total = 0
    for result in results:
        bits = _bits(result)
        for start in range(0, bits.numel(), COMPARED // 8):
            piece = bits[start : start + COMPARED // 8]
            words = nn.functional.pad(piece, (0, -piece.numel() % 8)).view(torch.int64)
            # Odd factors: what differs in one word differs in the sum of all, modulo 2 ** 64.
            factors = torch.arange(words.numel(), device=words.device).mul_(0x9E3779B98).add_(1)
            total = (total * 31 + int(words.mul(factors).sum())) % (1 << 61)
    return total


def weight_bytes(model: nn.Module) -> int:
    tensors = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return sum(tensor.nbytes for tensor in tensors.values())


class Pass(NamedTuple):
    """One call of a model's forward.

    Attributes:
        model: Which of several.
        touched: Bytes of its weights that are read.
        others: Bytes of all else at the peak.
        ms: That it took, waited for.
    """

    model: int
    touched: int
    others: int
    ms: float


class Passes:
    """Notes the passes of some models: embedding tables touched by rows, experts by choice.

    Attributes:
        made: Each call of one of the models' forwards, in their order.

    Args:
        card: What they run on.
        models: Passes are calls of these.
        before: Bytes allocated that are no pass's.
    """

    def __init__(self, card: Card, models: list[nn.Module], before: int) -> None:
        self.made: list[Pass] = []
        self._card, self._before = card, before
        self._seen: dict[int, int] = {}
        self._began = 0.0
        self._handles: list[Any] = []
        for number, model in enumerate(models):
            self._handles.append(model.register_forward_pre_hook(self._pass_begins))
            for module in model.modules():
                if module._parameters:
                    self._handles.append(module.register_forward_pre_hook(self._touches))
            self._handles.append(model.register_forward_hook(partial(self._pass_ends, number)))

    def _pass_begins(self, *_: Any) -> None:
        self._card.synchronize()
        self._card.forget_peak()
        self._began = time.perf_counter()

    def _touches(self, module: nn.Module, args: Any) -> None:
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            count = parameter.shape[0] if parameter.dim() else 1
            if isinstance(module, nn.Embedding) and args:
                rows = min(count, args[0].numel())
                size = parameter.nbytes * rows // count
            elif parameter.dim() == 3 and len(args) > 1 and not args[1].is_floating_point():
                size = parameter.nbytes * args[1].unique().numel() // count
            else:
                size = parameter.nbytes
            self._seen[id(parameter)] = max(size, self._seen.get(id(parameter), 0))

    def _pass_ends(self, number: int, *_: Any) -> None:
        self._card.synchronize()
        took = (time.perf_counter() - self._began) * 1e3
        others = max(0, self._card.peak() - self._before)
        self.made.append(Pass(number, sum(self._seen.values()), others, took))
        self._seen.clear()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
