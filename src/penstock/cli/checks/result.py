# SPDX-License-Identifier: Apache-2.0
"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report.

    Attributes:
        id: Its name, which scripts may rely on.
        status: "ok"; "warn", it works but worse than it could; "fail", it does not work; "skip",
            there was nothing to look at.
        observed: What was seen, with numbers.
        why: What it matters for.
        remedy: What to do about it; empty where there is nothing to do.
    """

    id: str
    status: Status
    observed: str
    why: str
    remedy: str = ""

    def must_hold(self) -> Check:
        """The same check where skipping is not good enough, because its subject was asked for."""
        return replace(self, status="fail") if self.status == "skip" else self
