# SPDX-License-Identifier: Apache-2.0
"""One model of training/jobs.py and its steps, for training_budget.py and training_peers.py."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from kit.card import Card, PeakWatch
from kit.measure import MemoryWatch, host_used, spread
from kit.record import Record
from torch import nn

from penstock.units import MIB, parse_size
from training.jobs import JOBS

HOST_SAMPLE_S = 0.05  # between two looks at the host's memory


def full_collections() -> int:
    """How many there have been of Python's: of all that torch and transformers made, 0.2 s each."""
    return int(gc.get_stats()[2]["collections"])


class Bench:
    """One model and its batches."""

    def __init__(self, name: str, args: argparse.Namespace, card: Card, record: Record) -> None:
        self.name, self.args, self.card, self.job = name, args, card, JOBS[name]
        self.cuda, self.device = not card.small, card.device
        self.record = record
        batches = self.job.batches(tiny=not self.cuda)
        self.batches = [batch.to(self.device) for batch in batches]
        self.budgets = self.job.budgets if self.cuda else self.job.tiny_budgets

    def budget(self, text: str, resident: dict[str, Any] | None) -> int:
        """Bytes."""
        if not text.endswith("%"):
            return parse_size(text)
        if resident is None:
            raise ValueError(f"{text} of what the resident run needs, which is not known")
        return int(resident["torch_peak_bytes"] * float(text[:-1]) / 100) // MIB * MIB

    def make(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        with self.device:
            model = self.job.make(not self.cuda)
        model.train()
        return model, self.optimizer(model)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.job.optimizer([p for p in model.parameters() if p.requires_grad])

    @contextmanager
    def watched(self) -> Iterator[PeakWatch]:
        """The device's memory, and the host's; nothing is left of the last row, nor of this one."""
        self.card.clear()
        with PeakWatch(self.card) as watch, MemoryWatch(host_used, HOST_SAMPLE_S) as self._host:
            yield watch
        self.card.clear()

    def run(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        after: Callable[[], None] = lambda: None,
        backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
    ) -> dict[str, Any]:
        """Warm-up and timed steps; milliseconds, losses, peaks and what is alive. While watched().

        Args:
            model: It.
            optimizer: Its.
            after: Called after each step, beside the time.
            backward: Called with the loss.
        """
        losses, times, alive, collections = [], [], 0, 0
        self.card.forget_peak()
        for number in range(self.args.warmups + self.args.steps):
            self.record.check_time()
            if number == self.args.warmups:
                collections = full_collections()
            begin = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.job.half):
                loss = self.job.loss(model, self.batches[number % 2])
            if self.cuda:
                alive = max(alive, torch.cuda.memory_allocated())
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            self.card.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
            after()
        row = {**spread(times[self.args.warmups :]), "losses": losses}
        row["full_collections"] = full_collections() - collections
        row["warmups_ms"] = [round(each, 1) for each in times[: self.args.warmups]]
        row["host_peak_bytes"] = self._host.highest - self._host.before
        if self.cuda:
            row["torch_peak_bytes"] = self.card.peak()
            row["torch_peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
            row["alive_bytes"] = alive
        return row

    def forward_ms(self, model: nn.Module) -> float:
        """The median time of forward alone; what backward would need is thrown away."""
        times = []
        for number in range(self.args.warmups + self.args.steps):
            begin = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=not self.job.half):
                self.job.loss(model, self.batches[number % 2])
            self.card.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
        return float(spread(times[self.args.warmups :])["median_ms"])
