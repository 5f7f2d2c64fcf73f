# SPDX-License-Identifier: Apache-2.0
"""One process of a fine-tune, from request to result.

Invariant: what can be refused is refused before a model is built; whatever ends a run, the engine
is closed before `train` is left; a result exists only of a whole run.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from penstock.config import allocator_options
from penstock.report.progress import Progress
from penstock.runner.device import RunDevice, choose_device

from . import allocators
from .checkpoint import Store
from .data import Source
from .engines import check_engine, make_engine
from .group import Group
from .loop import Loop
from .memory import CudaMeter, Meter, ReplayMeter
from .model import Plan, build_model, plan_model
from .recorder import AllocationRecorder
from .request import Request
from .result import document
from .sources import open_source


def train(request: Request, *, progress: Progress, group: Group | None = None) -> dict[str, Any]:
    """Do what is asked, in this process.

    Args:
        request: A checked request.
        progress: Shows how far it is.
        group: The processes; None is this one alone.

    Returns:
        The result, as JSON gives it; see `result.document`.

    Raises:
        PenstockError: If it cannot be done; its class says why.
    """
    return _Session(request, progress, group or Group()).run()


class _Session:
    """The parts of one run."""

    def __init__(self, request: Request, progress: Progress, group: Group) -> None:
        _quiet()
        check_engine(request)
        self.request, self.progress, self.group = request, progress, group
        self.plan: Plan = plan_model(request)
        self.source: Source = open_source(request, self.plan)
        self.store = Store(request, group) if request.checkpoint is not None else None
        if self.store is not None:
            self.store.prepare()
        allocators.install(request, local_rank=group.local_rank)
        self.device: RunDevice = choose_device(request.settings)

    def run(self) -> dict[str, Any]:
        meter = self._meter()
        with self.progress.stage(f"building {self.plan.name}", 1) as advance:
            model = build_model(self.request, self.plan, self.device.torch_device)
            engine = make_engine(self.request, model, self.device, self.group)
            advance(1)
        try:
            torch.manual_seed(self.request.seed + 1 + self.group.rank)
            loop = Loop(
                self.request,
                engine,
                self.source,
                meter,
                self.group,
                self.progress,
                self.request.batch,
            )
            if self.store is not None:
                loop.history = self.store.load(engine)
                loop.save = lambda: self._save(loop)
            if isinstance(meter, ReplayMeter):
                meter.adopt(engine.alive())
                engine.look = meter.adopt
            loop.run()
            ranks = self.group.gather(meter.figures())
            return document(self.request, self.plan, loop, ranks)
        finally:
            engine.close()

    def _save(self, loop: Loop) -> None:
        assert self.store is not None
        self.store.save(loop.engine, loop.history)

    def _meter(self) -> Meter:
        if self.device.is_cuda:
            return CudaMeter(self.device)
        packing = allocator_options(self.request.settings)
        return ReplayMeter(AllocationRecorder(), self.request.allocator, packing)


def _quiet() -> None:
    """What transformers says of its own future is not about this run."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
