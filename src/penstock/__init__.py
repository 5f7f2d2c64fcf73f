# SPDX-License-Identifier: Apache-2.0
"""Penstock: run PyTorch models larger than GPU memory, at the speed of the host link.

Public names only.  Each is imported on first use, so that ``import penstock`` costs
milliseconds and needs neither torch nor a GPU: the command line relies on it.
"""

from __future__ import annotations

from ._version import __version__

# Type checkers take this for true and see the names; importing typing would cost more than all
# the rest of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .allocator import enable, mem_pool
    from .errors import EnvironmentProblem, FailedError, OutOfMemory, PenstockError, UsageError
    from .paging.attach import Attachment, attach
    from .paging.attached import attachments
    from .paging.current import memory_summary, stats
    from .paging.pretrained import from_pretrained
    from .paging.training import TrainingAttachment, attach_training

# Public name -> the module that defines it.
_PUBLIC = {
    "Attachment": "penstock.paging",
    "TrainingAttachment": "penstock.paging",
    "attach": "penstock.paging",
    "attach_training": "penstock.paging",
    "attachments": "penstock.paging",
    "enable": "penstock.allocator",
    "from_pretrained": "penstock.paging",
    "mem_pool": "penstock.allocator",
    "memory_summary": "penstock.paging",
    "stats": "penstock.paging",
    "EnvironmentProblem": "penstock.errors",
    "FailedError": "penstock.errors",
    "OutOfMemory": "penstock.errors",
    "PenstockError": "penstock.errors",
    "UsageError": "penstock.errors",
}

__all__ = [
    "Attachment",
    "EnvironmentProblem",
    "FailedError",
    "OutOfMemory",
    "PenstockError",
    "TrainingAttachment",
    "UsageError",
    "__version__",
    "attach",
    "attach_training",
    "attachments",
    "enable",
    "from_pretrained",
    "mem_pool",
    "memory_summary",
    "stats",
]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    import importlib

    try:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from .errors import EnvironmentProblem

        raise EnvironmentProblem(
            f"penstock.{name} needs torch", remedy="pip install 'penstock[torch]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from importlib.util import find_spec

    # help() and inspect ask for whatever is listed.
    torch = find_spec("torch") is not None
    there = {name for name, module in _PUBLIC.items() if torch or module == "penstock.errors"}
    return sorted({*globals(), *there})
