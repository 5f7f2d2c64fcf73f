# SPDX-License-Identifier: Apache-2.0
"""What fusion_conformance.py and its parts have found."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

TINY = {torch.float32: 1e-6, torch.bfloat16: 1e-4, torch.float16: 1e-5}


@dataclass
class Report:
    """What was checked and what failed."""

    checks: int = 0
    worst: float = 0.0
    failures: list[str] = field(default_factory=list)

    def rule(self, what: str, got: Tensor, plain: Tensor, exact: Tensor) -> None:
        """error(got) <= 2 x error(plain) + tiny, in root mean square."""
        self.checks += 1
        got, plain, exact = got.detach(), plain.detach(), exact.detach()
        size = float(exact.double().square().mean().sqrt()) + 1e-30
        mine, theirs = (
            float((value.double() - exact.double()).square().mean().sqrt()) / size
            for value in (got, plain)
        )
        bound = 2 * theirs + TINY[got.dtype]
        self.worst = max(self.worst, mine / bound)
        if not mine <= bound:
            self.failures.append(f"{what}: {mine:.3g}, torch's own {theirs:.3g}")

    def true(self, what: str, holds: bool) -> None:
        """Something that simply holds."""
        self.checks += 1
        if not holds:
            self.failures.append(what)
