# SPDX-License-Identifier: Apache-2.0
"""Modules that are used together: small ones within one module have one use.

To declare a use costs the launching thread time, in Python and in the driver. Where the projections
of an attention are small, that can be more than their kernels take.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from torch import nn

from .use import Use, ancestors

_CHOICES = (nn.ModuleList, nn.ModuleDict)  # a pass may take some of their modules only


def joints(
    names: dict[nn.Module, str],
    own: dict[nn.Module, Use],
    *,
    apart: Container[object],
    most_bytes: int,
) -> Iterator[tuple[nn.Module, list[Use]]]:
    """The modules within which all uses may be one, and these uses.

    None is a larger burden than the largest use that there is anyway, or within another use.

    Args:
        names: The path of each module of the model.
        own: The uses of those that own paged blocks.
        apart: Those that are declared in part.
        most_bytes: Of what is used together.
    """
    by_name = {names[module]: use for module, use in own.items()}
    most_pages = max((len(use.pages) for use in own.values()), default=0)
    taken: set[str] = set()
    for module, name in names.items():  # a module comes before those within it
        outer = ancestors(name)
        if not outer or module in own or taken.intersection(outer) or by_name.keys() & outer:
            continue
        within = list(module.modules())
        if any(isinstance(each, _CHOICES) for each in within):
            continue
        uses = [own[each] for each in within if each in own]
        blocks = frozenset().union(*(use.blocks for use in uses))
        if (
            len(uses) > 1
            and not any(use in apart for use in uses)
            and sum(block.nbytes for block in blocks) <= most_bytes
            and len(frozenset().union(*(use.pages for use in uses))) <= most_pages
        ):
            taken.add(name)
            yield module, uses
