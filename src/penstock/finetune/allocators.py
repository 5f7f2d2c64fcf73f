# SPDX-License-Identifier: Apache-2.0
"""Putting the allocator of a run in place, and capping it.

`variables` comes before torch is imported, `install` before CUDA is used: torch's own allocators
are chosen by a variable, Penstock's replaces them. On the emulated GPU nothing is put in place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.units import parse_size

from .request import Request

# torch 2.11 to 2.15 read the second alone where it is set, even to nothing.
_VARIABLE, _OLD_VARIABLE = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
_SEGMENTS = "expandable_segments"


def variables(request: Request, environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment has to say for the allocator that is asked for.

    What a user configured of torch's allocator stays, but for the one setting in question.
    """
    if request.settings.device == "emulated":
        return {}
    text = environ.get(_OLD_VARIABLE, environ.get(_VARIABLE, ""))
    kept = [part for part in text.split(",") if part and not part.strip().startswith(_SEGMENTS)]
    if request.allocator == "expandable":
        kept.append(f"{_SEGMENTS}:True")
    elif request.paged:  # where the pager would choose them
        kept.append(f"{_SEGMENTS}:False")
    wanted = "" if request.allocator == "stitch" else ",".join(kept)
    return dict.fromkeys((_VARIABLE, _OLD_VARIABLE), wanted) if wanted != text else {}


def install(request: Request) -> None:
    """Put the allocator in place, if there is a GPU to allocate on, and cap it.

    Where the pager serves, it is the pager that has the budget and limits the allocator.

    Raises:
        EnvironmentProblem: If torch cannot use a GPU that was asked for.
        UsageError: If CUDA was used before.
    """
    import torch

    if request.settings.device == "emulated" or not torch.cuda.is_available():
        return
    budget = "auto" if request.paged else request.settings.gpu_memory
    if request.allocator == "stitch":
        from penstock.allocator import enable

        enable(gpu_memory=budget)
    elif budget != "auto":
        ordinal = int(request.settings.device.partition(":")[2] or 0)
        total = torch.cuda.get_device_properties(ordinal).total_memory
        share = parse_size(budget, total=total, name="--gpu-memory") / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), ordinal)


def apply(request: Request) -> None:
    """Set the variables of this process."""
    os.environ.update(variables(request, os.environ))
