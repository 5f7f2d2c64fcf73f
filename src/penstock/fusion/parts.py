# SPDX-License-Identifier: Apache-2.0
"""Which layers a choice of variants is built from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .variants import Fusion, parse

if TYPE_CHECKING:
    from .modules import FusedParts


def parts_for(fusion: Fusion | str) -> FusedParts | None:
    """Parts for variants; None, which stands for torch's own layers, for the baseline."""
    fusion = parse(fusion) if isinstance(fusion, str) else fusion
    if not fusion.variants:
        return None
    # Making its operators known has torch import its compiler, which takes seconds.
    from .modules import FusedParts

    return FusedParts(fusion)
