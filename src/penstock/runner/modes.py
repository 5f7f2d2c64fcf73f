# SPDX-License-Identifier: Apache-2.0
"""The ways to hold a model: paged by remapping, in managed memory, or simply resident.

Invariant: each is a context that has a model ready on entry and has given everything back on
exit, however it ends; all three give the same counters, those that do not apply being zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from penstock.errors import OutOfMemory
from penstock.fusion.parts import parts_for
from penstock.fusion.variants import Fusion
from penstock.host import check_host_memory, memory_sizes
from penstock.models.weights import Loader, load_model
from penstock.report.progress import Advance, Progress
from penstock.units import MIB, format_bytes, parse_size

from .device import RunDevice
from .request import Request
from .subject import Subject

log = logging.getLogger("penstock.runner")


@dataclass(frozen=True)
class Held:
    """A model ready to run.

    Attributes:
        model: The module.
        stats: Its counters now: bytes_in, bytes_out, hit_ratio, link_gb_per_s and more.
        explain: One line on why the last passes took as long as they did.
        counted: Whether the bytes moved are known; not where a driver pages on demand.
    """

    model: nn.Module
    stats: Callable[[], dict[str, Any]]
    explain: Callable[[], str]
    counted: bool = True


@contextmanager
def hold(
    request: Request,
    subject: Subject,
    device: RunDevice,
    memory: str,
    progress: Progress,
    *,
    fusion: Fusion | None = None,
) -> Iterator[Held]:
    """Hold the subject in one of the ways.

    Args:
        request: The run.
        subject: What to load.
        device: Where it runs.
        memory: "vmm", "managed" or "resident"; not always the request's own.
        progress: Shows how far the loading is.
        fusion: Variants of the layers, compiled where the request says so; None is the baseline.

    Raises:
        OutOfMemory: If the budget, the card or the host cannot hold what must be held.
    """
    way = {"vmm": _paged, "managed": _managed, "resident": _resident}[memory]
    title = f"loading {format_bytes(subject.weight_bytes)} ({memory})"
    with ExitStack() as stack:
        with progress.stage(title, subject.weight_bytes) as advance:
            load = _counting(subject.load, advance)
            held = stack.enter_context(way(request, subject, device, load, fusion or Fusion()))
        if fusion is not None and request.compile:
            _compile(held.model)
        yield held


def _compile(model: nn.Module) -> None:
    """Compile the blocks in place; all are of one shape, so one compilation serves them all."""
    blocks = model.get_submodule("blocks")
    for block in blocks.children():
        block.compile(dynamic=False)


def _counting(load: Loader, advance: Advance) -> Loader:
    def counted(name: str, destination: Tensor) -> None:
        load(name, destination)
        advance(destination.nbytes)

    return counted


@contextmanager
def _paged(
    request: Request, subject: Subject, device: RunDevice, load: Loader, fusion: Fusion
) -> Iterator[Held]:
    from penstock.paging import attach

    settings = request.settings
    attachment = attach(
        subject.on_meta(fusion),
        gpu_memory=settings.gpu_memory,
        device=device.name,
        load=load,
        chunk_size=settings.chunk_size,
        look_ahead=settings.look_ahead,
        safety=settings.safety,
        host_memory=settings.host_memory,
        compress=settings.compress,
        emulated=device.emulated,
    )
    try:
        link_in, link_out = attachment.link()  # measured before anything is timed
        log.info(
            "attached budget=%d link_in=%.1f link_out=%.1f", attachment.budget, link_in, link_out
        )
        yield Held(attachment.model, lambda: asdict(attachment.stats()), attachment.explain)
    finally:
        attachment.detach(keep=False)


@contextmanager
def _managed(
    request: Request, subject: Subject, device: RunDevice, load: Loader, fusion: Fusion
) -> Iterator[Held]:
    from penstock.paging.managed import attach_managed

    attachment = attach_managed(
        subject.on_meta(fusion),
        gpu_memory=request.settings.gpu_memory,
        device=device.name,
        load=load,
        host_memory=request.settings.host_memory,
        emulated=device.emulated,
        prefetch=request.prefetch,
        num_streams=request.num_streams,
        allow_oversubscription=request.allow_oversubscription,
    )
    try:
        attachment.link()  # measured before anything is timed
        counted = not attachment.on_demand
        yield Held(
            attachment.model, lambda: asdict(attachment.stats()), attachment.explain, counted
        )
    finally:
        attachment.detach(keep=False)


@contextmanager
def _resident(
    request: Request, subject: Subject, device: RunDevice, load: Loader, fusion: Fusion
) -> Iterator[Held]:
    _check_fits(request, subject, device)
    # As the baseline of a check nobody asks for the link, and measuring takes device memory.
    link_in, link_out = device.measure_link() if request.memory == "resident" else (0.0, 0.0)
    model = load_model(
        subject.config,
        load,
        dtype=subject.dtype,
        device=device.torch_device,
        parts=parts_for(fusion),
    )
    # The budget of an ordinary model is the whole card.
    fixed = {
        "bytes_in": 0,
        "bytes_out": 0,
        "hit_ratio": 1.0,
        "link_gb_per_s": link_in,
        "link_out_gb_per_s": link_out,
        "weight_bytes": subject.weight_bytes,
        "gpu_memory_bytes": device.total_bytes(),
        "device_bytes": subject.weight_bytes,
        "peak_device_bytes": subject.weight_bytes,
    }
    yield Held(model, lambda: dict(fixed), lambda: "everything is resident, nothing moves")


def _check_fits(request: Request, subject: Subject, device: RunDevice) -> None:
    """Refuse before loading what an ordinary model would not find room for."""
    free = device.free_bytes()
    if free is None:
        check_host_memory(subject.weight_bytes, limit=_host_limit(request))
        return
    tokens = request.tokens_in_a_sequence(subject.config) if request.timed_steps else 1
    activations = subject.config.activation_bytes(request.batch, tokens, subject.dtype)
    needed = subject.weight_bytes + activations
    if needed > free:
        raise OutOfMemory(
            f"resident, {subject.config.name} needs {format_bytes(needed)} of device memory, and "
            f"{format_bytes(free)} are free",
            remedy=f"--memory vmm --gpu-memory {free // MIB}MiB, without --check",
            needed_bytes=needed,
            budget_bytes=free,
        )


def _host_limit(request: Request) -> int | None:
    """What --host-memory comes to, in bytes; None leaves it to what the host has available."""
    text = request.settings.host_memory
    if text == "auto":
        return None
    sizes = memory_sizes()
    return parse_size(text, total=sizes[0] if sizes else None, name="--host-memory")
