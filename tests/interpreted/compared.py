# SPDX-License-Identifier: Apache-2.0
"""What the interpreted kernels' tests compare with, and which kernels they expect."""

from __future__ import annotations

import os

import torch

from penstock.fusion import kernels, rows

assert os.environ["TRITON_INTERPRET"] == "1"  # read when triton is imported


def without_kernels(patched):
    """From here on the references; what was decided before is forgotten."""
    patched.setattr(kernels, "usable", lambda device: False)
    patched.setattr(rows, "FORWARDS", type(rows.FORWARDS)())
    patched.setattr(rows, "BACKWARDS", type(rows.BACKWARDS)())


def summed(dtype):
    """The kernel that adds up what programs have summed, where there is a conversion to save."""
    return [] if dtype == torch.float32 else ["sums"]
