# SPDX-License-Identifier: Apache-2.0
"""What `penstock run` does to PyTorch: Penstock allocates for it, from its import on.

torch's own allocator cuts tensors out of large segments, and a pointer into a segment does not say
how far its tensor reaches. With Penstock's, a block is a tensor.

Thread rule: install() once, right after ``import torch``.
"""

from __future__ import annotations

import logging

import torch

from penstock import config
from penstock.errors import PenstockError

from .enabling import enable_unasked

log = logging.getLogger("penstock.run")


def install() -> bool:
    """Let Penstock allocate; whether it does.

    Nothing is asked of CUDA: a program that forks after importing torch, and uses CUDA in the
    child alone, still can. A build of torch without CUDA is left as it is, and so is one whose
    user said ``allocator.stitch = false``.
    """
    if torch.version.cuda is None:
        return False
    try:
        return enable_unasked(config.load())
    except PenstockError as error:
        log.warning("torch keeps its own allocator: %s", error)
        return False
