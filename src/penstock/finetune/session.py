# SPDX-License-Identifier: Apache-2.0
"""One process of a fine-tune, from request to result.

Invariant: what can be refused is refused before a model is built; whatever ends a run, the engine
is closed before `train` is left; a result exists only of a whole run.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch
from transformers.utils import logging as transformers_logging

from penstock.config import allocator_options
from penstock.errors import OutOfMemory, UsageError
from penstock.report.progress import Progress
from penstock.runner.device import RunDevice, check_batch, choose_device
from penstock.units import parse_size

from . import allocators
from .checkpoint import Store, alone
from .data import Source
from .engine import Engine, make_engine
from .group import Group
from .history import PAGED_WARM_UP, WARM_UP, History
from .loop import Loop
from .memory import Budget, CudaMeter, Meter, ReplayMeter, largest_layer_bytes, out_of_memory
from .model import Plan, build_model, plan_model
from .recorder import AllocationRecorder
from .request import Request
from .result import document
from .search import Fit, Found, follow, largest
from .sources import open_source

# On the emulated GPU a budget is held against the recording after these steps, the second of which
# has everything in it that a step of that size has, and after the last.
CHECKED_STEPS = (1, 2)


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
    with ExitStack() as held:
        return _Session(request, progress, group or Group(), held).run()


@contextmanager
def _frozen() -> Iterator[None]:
    """Python's full collections leave out what is there: torch's and transformers' objects, 0.2 s.

    What lives from forward to backward brings one on every few dozen steps.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Session:
    """The parts of one run; what it holds to its end is in `held`."""

    def __init__(self, request: Request, progress: Progress, group: Group, held: ExitStack) -> None:
        _quiet()
        self.request, self.progress, self.group = request, progress, group
        self.plan: Plan = plan_model(request)
        self.source: Source = open_source(request, self.plan)
        self.store = Store(request, group) if request.checkpoint is not None else None
        if self.store is not None:
            held.enter_context(alone(request, group))
            self.store.prepare()
        allocators.install(request)
        self.device: RunDevice = choose_device(request.settings)
        if request.find_batch and not self.device.is_cuda and not request.has_budget:
            raise UsageError(
                "--find-batch on the emulated GPU, which has no end", remedy="--gpu-memory 64MiB"
            )
        if not self.device.is_cuda:
            self._budget_bytes()
        check_batch(
            self.device,
            batch=request.batch,
            tokens=2 if request.lengths == "varied" else request.longest(self.plan.positions),
            vocabulary=self.plan.vocabulary,
        )
        self.found: Found | None = None

    def run(self) -> dict[str, Any]:
        if self.request.find_batch:
            self._find_batch()
        while (result := self._train()) is None:
            self._let_go()
        return result

    def _train(self) -> dict[str, Any] | None:
        """All steps; None where the batch that was found did not fit after all: the next will."""
        warm_up = PAGED_WARM_UP if self.request.paged else WARM_UP
        cuda = self.device.is_cuda
        meter: Meter = CudaMeter(self.device, warm_up) if cuda else self._recording()
        with self._engine(self.store) as (engine, history):
            loop = Loop(
                *(self.request, engine, self.source, meter, self.group, self.progress),
                batch=self.request.batch,
                history=history,
                save=lambda: self._save(loop),
            )
            history.warm_up = warm_up
            self._watch(engine, meter, loop)
            begin = time.perf_counter()
            try:
                with _frozen():
                    loop.run()
            except (RuntimeError, OutOfMemory) as error:
                if not out_of_memory(error):
                    raise
                if not self._found_too_large(engine, error, time.perf_counter() - begin):
                    self._too_large(engine, error)
                return None
            ranks = self.group.gather(meter.figures())
            return document(self.request, self.plan, loop, ranks, self.found)

    @contextmanager
    def _engine(self, store: Store | None = None) -> Iterator[tuple[Engine, History]]:
        """A new engine, the same for the same seed, or as a checkpoint left it."""
        with self.progress.stage(f"building {self.plan.name}", 1) as advance:
            model = build_model(self.request, self.plan, self.device.torch_device)
            engine = make_engine(self.request, model, self.device, self.group)
            advance(1)
        del model
        torch.manual_seed(self.request.seed + 1 + self.group.rank)
        try:
            history = store.load(engine) if store is not None else History()
            engine.start()
            yield engine, history
        finally:
            engine.close()

    def _watch(self, engine: Engine, meter: Meter, loop: Loop) -> None:
        """Begin to count, with what is there now."""
        meter.restart()
        if not isinstance(meter, ReplayMeter):
            return
        follow(meter, engine)
        budget = self._budget(engine)
        if budget is None:
            return
        first = loop.history.done

        def check(done: int) -> None:
            due = done - first in CHECKED_STEPS or done == self.request.steps
            if due and not budget.holds(meter):
                raise torch.OutOfMemoryError("the recorded steps do not fit")  # as a GPU says it

        loop.after_step = check

    def _recording(self) -> ReplayMeter:
        packing = allocator_options(self.request.settings)
        return ReplayMeter(AllocationRecorder(), self.request.allocator, packing)

    def _budget(self, engine: Engine) -> Budget | None:
        """What a replay is held to; None where there is a GPU, or no budget."""
        size = self._budget_bytes()
        if self.device.is_cuda or size is None:
            return None
        pager = largest_layer_bytes(engine.model) if self.request.paged else 0
        return Budget(size, pager, self._recording)

    def _budget_bytes(self) -> int | None:
        """What was asked for on the emulated GPU; a share of it takes a capacity."""
        if not self.request.has_budget:
            return None
        total = self.device.emulated.get("capacity")
        return parse_size(self.request.settings.gpu_memory, total=total, name="--gpu-memory")

    def _search(self, engine: Engine, below: int | None = None, first: int = 1) -> Found:
        with self.progress.stage("looking for the largest batch", 100) as advance:
            fit = Fit(engine, self.source, self._budget(engine), advance)
            batch = largest(fit, below=below, first=first)
        return Found(batch, fit.tries)

    def _find_batch(self) -> None:
        """Search on an engine that is thrown away, and go on with what was found."""
        with self._engine() as (engine, _):
            found = self._search(engine)
        del engine
        self._let_go()
        self._take(found)

    def _take(self, found: Found) -> None:
        """Train with the batch that was found.

        Raises:
            OutOfMemory: If there is none.
        """
        if found.batch == 0:
            self._refuse(1, 0)
        self.found = found
        self.request = replace(self.request, batch=found.batch)
        if self.store is not None:
            self.store = Store(self.request, self.group)

    def _let_go(self) -> None:
        """Of an engine that is thrown away: all that it held."""
        gc.collect()
        if self.device.is_cuda:
            torch.cuda.empty_cache()

    def _found_too_large(self, engine: Engine, error: Exception, seconds: float) -> bool:
        """After a run with the batch that was found ran out of memory: find a smaller one.

        A search tries a few steps of each batch, one batch after the other: what those leave, or
        more steps, may be what is between fitting and not.

        Returns:
            Whether there is another to begin again with; not once a checkpoint was saved.
        """
        saved = self.store is not None and self.store.newest() is not None
        if self.found is None or self.request.batch == 1 or saved:
            return False
        engine.recover()
        _forget_frames(error)
        batch = self.request.batch
        smaller = self._search(engine, below=batch, first=batch - 1)
        failed = {"batch": batch, "fits": False, "seconds": round(seconds, 3)}
        self._take(Found(smaller.batch, [*self.found.tries, failed, *smaller.tries]))
        return True

    def _too_large(self, engine: Engine, error: Exception) -> NoReturn:
        """Say which batch would have fitted.

        Raises:
            OutOfMemory: Always.
        """
        if self.group.world > 1:
            raise OutOfMemory(
                f"a process ran out of memory: {str(error).split('. ')[0]}",
                remedy="a smaller --batch or --seq-len, R, L or O, or more --gpus",
            ) from error
        engine.recover()
        _forget_frames(error)
        batch = self.request.batch
        fits = self._search(engine, below=batch).batch if batch > 1 else 0
        if not fits and isinstance(error, OutOfMemory):
            raise error  # the pager knows better what is missing
        self._refuse(batch, fits)

    def _refuse(self, batch: int, fits: int) -> NoReturn:
        work = f"{batch} x {self.request.longest(self.plan.positions):,} tokens"
        budget = self.request.settings.gpu_memory
        room = f"a budget of {budget}" if self.request.has_budget else "the device's memory"
        if fits:
            raise OutOfMemory(
                f"a step of {work} does not fit into {room}; the largest batch that does is {fits}",
                remedy=f"--batch {fits}",
            )
        more = "" if self.request.ways.recompute else "--strategy with R, "
        raise OutOfMemory(
            f"a step of {work} does not fit into {room}, and no smaller batch does",
            remedy=f"{more}a smaller --seq-len, or a larger --gpu-memory",
        )

    def _save(self, loop: Loop) -> None:
        assert self.store is not None
        self.store.save(loop.engine, loop.history)


def _forget_frames(error: BaseException) -> None:
    """Of an error that is kept: they hold what the step had made, and so do those of its causes."""
    chain: BaseException | None = error
    while chain is not None:
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__


def _quiet() -> None:
    """What transformers says of its own future is not about this run."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
