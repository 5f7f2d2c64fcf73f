# SPDX-License-Identifier: Apache-2.0
"""The allocators that the benchmarks compare, chosen for a whole process, and what they report.

`begin` comes before torch is imported. All three report through torch.cuda.memory_stats(), so that
one reader serves them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

from kit.measure import script_parser

from penstock.units import parse_size

ALLOCATORS = ("native", "expandable", "stitch")


def allocator_parser(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark process of one allocator."""
    parser = script_parser(doc)
    parser.add_argument("--allocator", choices=ALLOCATORS, required=True)
    parser.add_argument("--cap", type=parse_size, default=None, help="device memory, e.g. 24GiB")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", default=None, help="file for the result; else standard output")
    parser.add_argument("--tiny", action="store_true", help="shapes that a CPU runs in seconds")
    parser.add_argument(
        "--wait", action="store_true", help="import everything, then begin on a line from stdin"
    )
    return parser


def begin(args: argparse.Namespace, *modules: str) -> None:
    """Put the allocator in place; with `wait` import what takes seconds, and wait for a line."""
    prepare(args.allocator)
    if args.wait:
        wait_for_go(*modules)
    install(args.allocator, device=args.device, cap=args.cap)


def prepare(allocator: str) -> None:
    """Set the environment that torch reads when it is imported."""
    if "torch" in sys.modules:
        raise RuntimeError("begin() comes too late: torch is imported")
    os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    os.environ.pop("PYTORCH_ALLOC_CONF", None)
    if allocator == "expandable":
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    # Matrix products that give the same bits in every run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def wait_for_go(*modules: str) -> None:
    """Import what takes seconds, then wait, so that a suite can overlap imports with a run."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # the run itself says what it lacks
    if not sys.stdin.readline():
        sys.exit("the suite ended before this run began")


def install(allocator: str, *, device: str, cap: int | None) -> None:
    """Put the allocator in place and cap it; on a CPU there is nothing to choose."""
    if device == "cpu":
        return
    import torch

    if allocator == "stitch":
        import penstock

        if not penstock.enable(gpu_memory=cap):
            raise RuntimeError("penstock.enable() left torch's own allocator in place")
        torch.cuda.init()
    elif cap:
        torch.cuda.set_per_process_memory_fraction(cap / torch.cuda.mem_get_info()[1])


def memory_figures(device: str) -> dict[str, Any]:
    """Peaks since the process began, and every whole counter that is not zero."""
    if device == "cpu":
        return {}
    import torch

    stats = torch.cuda.memory_stats()
    requested = stats.get("requested_bytes.all.peak", 0)
    active = stats.get("active_bytes.all.peak", 0)
    reserved = stats.get("reserved_bytes.all.peak", 0)
    kept = {
        name: value
        for name, value in stats.items()
        if value and isinstance(value, int) and (".all." in name or "." not in name)
    }
    return {
        "peak_requested_bytes": requested,
        "peak_active_bytes": active,
        "peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
        "peak_reserved_bytes": reserved,
        "utilisation": round(requested / reserved, 5) if reserved else None,
        "active_to_reserved": round(active / reserved, 5) if reserved else None,
        "stats": kept,
    }
