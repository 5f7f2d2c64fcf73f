# SPDX-License-Identifier: Apache-2.0
"""Whether AdamW's update of what does not stay is cheaper on the host than on the GPU.

    python benchmarks/update_place.py --output benchmarks/results/update_place.json

Of a parameter whose state lies on the host, an update on the GPU takes the state in and out; one on
the host takes the gradient out, and saves the weight's way back. `host` is torch.optim.AdamW with
fused=True over page-locked memory on all cores, alone and beside copies in both directions; `link`
is the state's copies, both ways at once; `beside_copies` what each of the two is slowed to by the
other. Times are of 512 million parameters.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from kit.measure import output_parser, spread
from kit.record import Record

from penstock.units import GIB

PIECE = 32_000_000  # parameters that are updated together, about a layer's
PARAMETERS = 16 * PIECE
STEPS, WARMUPS = 10, 3


class HostUpdate:
    """AdamW on the host, of parameters of one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        def drawn() -> torch.Tensor:
            return torch.randn(PIECE, dtype=torch.float32).to(dtype).pin_memory()

        weights = [drawn().requires_grad_() for _ in range(PARAMETERS // PIECE)]
        for weight in weights:
            weight.grad = drawn()
        self._optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)

    def __call__(self) -> None:
        self._optimizer.step()


class StateCopies:
    """The state of a step's parameters, in on one stream and out on another."""

    def __init__(self, nbytes: int) -> None:
        size = min(nbytes, GIB)
        self._times = max(1, nbytes // size)
        self._host = [torch.ones(size, dtype=torch.uint8).pin_memory() for _ in range(2)]
        self._device = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self._streams = [torch.cuda.Stream() for _ in range(2)]
        self.copied = self._times * size

    def __call__(self) -> None:
        for _ in range(self._times):
            with torch.cuda.stream(self._streams[0]):
                self._device[0].copy_(self._host[0], non_blocking=True)
            with torch.cuda.stream(self._streams[1]):
                self._host[1].copy_(self._device[1], non_blocking=True)
        torch.cuda.synchronize()


def time_of(work: Callable[[], None], beside: Callable[[], None] | None = None) -> list[float]:
    """Milliseconds of each of some runs, alone or while another runs again and again."""
    stop = threading.Event()

    def again() -> None:
        while not stop.is_set():
            beside()

    other = threading.Thread(target=again)
    if beside is not None:
        other.start()
    samples = []
    try:
        for step in range(WARMUPS + STEPS):
            began = time.perf_counter()
            work()
            if step >= WARMUPS:
                samples.append((time.perf_counter() - began) * 1e3)
    finally:
        stop.set()
        if beside is not None:
            other.join()
    return samples


def row(dtype: torch.dtype) -> dict[str, Any]:
    """Both ways for parameters of one dtype, whose state has it too."""
    size = torch.finfo(dtype).bits // 8
    host, link = HostUpdate(dtype), StateCopies(2 * size * PARAMETERS)
    scale = 2 * size * PARAMETERS / link.copied

    def each(samples: list[float], factor: float = 1.0) -> dict[str, Any]:
        return spread([sample * factor for sample in samples])

    return {
        "dtype": str(dtype).removeprefix("torch."),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "parameters": PARAMETERS,
        "state_bytes": 2 * size,
        "host": each(time_of(host)),
        "link": each(time_of(link), scale),
        "beside_copies": {
            "host": each(time_of(host, link)),
            "link": each(time_of(link, host), scale),
        },
        "host_again": each(time_of(host)),
    }


def main(argv: list[str] | None = None) -> int:
    args = output_parser(__doc__).parse_args(argv)
    record = Record(args.output)
    for dtype in (torch.float32, torch.bfloat16):
        record.add(row(dtype))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
