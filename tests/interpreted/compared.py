# SPDX-License-Identifier: Apache-2.0
"""What the interpreted kernels' tests compare with, and how."""

from __future__ import annotations

import os

import torch

from penstock.fusion import kernels, rows

assert os.environ["TRITON_INTERPRET"] == "1"  # read when triton is imported

TINY = {torch.float32: 1e-6, torch.bfloat16: 1e-4, torch.float16: 1e-5}


def random(*shape, dtype=torch.float32, shift=0.0, std=1.0):
    return (torch.randn(*shape) * std + shift).to(dtype)


def rms(value):
    return float(value.detach().double().square().mean().sqrt())


def check_rule(got, plain, exact, what=""):
    size = rms(exact) + 1e-30
    mine, theirs = rms(got.double() - exact) / size, rms(plain.double() - exact) / size
    assert mine <= 2 * theirs + TINY[got.dtype], (what, mine, theirs)


def without_kernels(patched):
    """From here on the references; what was decided before is forgotten."""
    patched.setattr(kernels, "usable", lambda device: False)
    patched.setattr(rows, "_forwards", type(rows._forwards)())
    patched.setattr(rows, "_backwards", type(rows._backwards)())


def summed(dtype):
    """The kernel that adds up what programs have summed, where there is a conversion to save."""
    return [] if dtype == torch.float32 else ["sums"]
