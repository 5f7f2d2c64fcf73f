# SPDX-License-Identifier: Apache-2.0
"""Whether somebody has come to hold weights, and may use them where no module is asked for them."""

from __future__ import annotations

import sys
from operator import gt

import torch


class Holders:
    """Those of some weights, by the number of references: to each and, by views, to its storage.

    Args:
        weights: Them.
    """

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._weights = weights
        self._most = [0] * len(weights)

    def grown(self) -> bool:
        """Whether there are more of any than ever before when this was asked."""
        users = torch._C._storage_Use_Count
        now = [
            sys.getrefcount(weight) + users(weight.untyped_storage()._cdata)
            for weight in self._weights
        ]
        grown = any(map(gt, now, self._most))
        if grown:
            self._most = list(map(max, self._most, now))
        return grown
