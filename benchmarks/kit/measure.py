# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: parsers, provenance, the link, times, memory by the driver's word.

Every timed figure is a list of samples after warm-up; a step is timed by CUDA events around the
forward pass, and the host waits for it before it gives the next one, as a program that reads its
logits does. Importing this does not import torch: some scripts choose its allocator first.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

KEPT_SAMPLES = 64  # more are told by their percentiles alone


# ---- What a script is given, and what it leaves ------------------------------------------------


def script_parser(doc: str | None) -> argparse.ArgumentParser:
    """A script's parser, described by the first line of its text."""
    return argparse.ArgumentParser(description=(doc or "").split("\n")[0])


def output_parser(doc: str | None, *, required: bool = True) -> argparse.ArgumentParser:
    """One that has ``--output FILE`` as well."""
    parser = script_parser(doc)
    parser.add_argument("--output", type=Path, required=required)
    return parser


def command_line() -> str:
    """This program's; files with whole paths by their names, since those are a machine's."""
    return " ".join(["python", *map(placeless, sys.argv)])


def placeless(word: str) -> str:
    """A word of a command line, or a setting, with a file's name in place of its whole path."""
    name, equals, value = word.rpartition("=")
    return f"{name}{equals}{Path(value).name}" if value.startswith("/") else word


def provenance(*, card: bool = True) -> dict[str, Any]:
    """Card, driver, torch, commit, date: what a figure is worth nothing without.

    Args:
        card: Whether a card took part; else the processor is named in its place.
    """
    return {
        **(_card() if card else {"processor": _processor()}),
        "python": platform.python_version(),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _card() -> dict[str, Any]:
    import torch

    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        card = "emulated"
    else:
        card = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "card": card.split("\n")[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str:
    root = Path(__file__).parents[2]
    if (root / "COMMIT").exists():
        return (root / "COMMIT").read_text().strip()
    git = ["git", "-C", str(root), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write_result(path: Path, document: Any) -> None:
    """Write one result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def settle() -> None:
    """Have results repeat themselves.

    cuBLAS may sum up in another order each time, and so may cuDNN's attention of one query to more
    than 256 keys.
    """
    import torch

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.enable_cudnn_sdp(False)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What is made meanwhile has this type, where it is not told another."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def alone() -> None:
    """Say to torch.distributed that this process is the only one of its group.

    Its store listens at a port that the system picks: several such processes may run at once.
    """
    one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**one, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)


# ---- The link ----------------------------------------------------------------------------------


def link_speed() -> float:
    """GB/s of page-locked copies to the device."""
    from penstock.native.device import Device

    with Device() as device:
        return device.measure_link(1 << 30, 5)[0]


def both_ways(size: int = 1 << 28, repeats: int = 8) -> tuple[float, float]:
    """GB/s in and out of page-locked copies that run at the same time."""
    import torch

    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    speeds = []
    for _ in range(2):  # the first warms up
        torch.cuda.synchronize()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(2)]
        for way, stream in enumerate(streams):
            events[way][0].record(stream)
        for _ in range(repeats):
            for way, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    if way == 0:
                        device[0].copy_(host[0], non_blocking=True)
                    else:
                        host[1].copy_(device[1], non_blocking=True)
        for way, stream in enumerate(streams):
            events[way][1].record(stream)
        torch.cuda.synchronize()
        speeds = [size * repeats / 1e6 / begin.elapsed_time(end) for begin, end in events]
    return speeds[0], speeds[1]


# ---- Time --------------------------------------------------------------------------------------


def time_steps(step: Callable[[], Any], *, warmups: int, steps: int) -> list[float]:
    """Milliseconds of each of `steps` calls after `warmups` more."""
    import torch

    for _ in range(warmups):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(steps):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times


def device_events(work: Callable[[], Any]) -> list[Any]:
    """Kernels, copies and fills of some work, as torch's profiler saw them on the device."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA  # and not the calls that started them
    return [event for event in seen.events() if event.device_type == device]


def spread(samples: list[float]) -> dict[str, Any]:
    """Median and percentiles in ms, and the samples themselves where they are few."""
    ordered = sorted(samples)
    if not ordered:
        return {}
    count = len(ordered)
    row = {
        "median_ms": statistics.median(ordered),
        "p10_ms": ordered[count // 10],
        "p90_ms": ordered[-1 - count // 10],
        "p99_ms": ordered[-1 - count // 100],
    }
    kept = {"samples_ms": [round(sample, 3) for sample in samples]} if count <= KEPT_SAMPLES else {}
    return {**{key: round(ms, 3) for key, ms in row.items()}, "samples": count, **kept}


# ---- Memory ------------------------------------------------------------------------------------


def driver_used() -> int:
    """Bytes of device memory in use by whomever, as the driver says."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free


def host_used() -> int:
    """Bytes of the host's memory that are not to be had, page-locked ones too."""
    from penstock.host import memory_sizes

    total, available = memory_sizes() or (0, 0)
    return total - available


def release() -> None:
    """Give back what only caches hold, that of cuBLAS too."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


class MemoryWatch:
    """The most device memory in use while it watches.

    Attributes:
        before: Bytes in use when it was made.
        highest: Bytes in use at the most since then.

    Args:
        used: Says how many bytes are in use.
        every_s: Seconds between two looks.
    """

    def __init__(self, used: Callable[[], int] = driver_used, every_s: float = 0.002) -> None:
        self._used, self._every_s = used, every_s
        self.before = self.highest = used()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self.highest = max(self.highest, self._used())

    def forget(self) -> None:
        """Watch from here on; `before` stays."""
        self.highest = self._used()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
