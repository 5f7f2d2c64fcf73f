# SPDX-License-Identifier: Apache-2.0
"""The rule that every fused layer is held to: at most twice torch's own error, plus a little."""

from __future__ import annotations

import torch

TINY = {torch.float32: 1e-6, torch.bfloat16: 1e-4, torch.float16: 1e-5, torch.float64: 1e-14}


def random(*shape, dtype=torch.float32, shift=0.0, std=1.0):
    return (torch.randn(*shape) * std + shift).to(dtype)


def rms(value):
    return float(value.detach().double().square().mean().sqrt())


def check_rule(got, plain, exact, what=""):
    """Errors against float64, by the root mean square, in units of the exact result's."""
    size = rms(exact) + 1e-30
    mine, theirs = rms(got.double() - exact) / size, rms(plain.double() - exact) / size
    assert mine <= 2 * theirs + TINY[got.dtype], (what, mine, theirs)
