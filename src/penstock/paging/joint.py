# SPDX-License-Identifier: Apache-2.0
"""Modules that are used together: small ones within one module have one use.

To declare a use costs the launching thread time, in Python and in the driver. Where the projections
of an attention are small, that can be more than their kernels take. So does a call that only finds
that its use is running: once all parts of a joint use have run a few times, calls of them are not
looked at any more, until one of them is read while the joint use is not running.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from torch import nn

from .blocks import Block
from .forwards import Forwards
from .use import Use, ancestors

_WHOLE_RUNS = 4  # before calls of the parts are not looked at


def _may_choose(module: nn.Module) -> bool:
    """Whether a pass may take some of its modules only, as of a list of experts."""
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):
        return False
    shapes = [tuple(p.shape for p in each.parameters()) for each in module.children()]
    own = [each for each in shapes if each]
    return len(set(own)) < len(own)


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
        if any(map(_may_choose, within)):
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


class Joints:
    """The joint uses of a model, and whose parts' calls are looked at.

    Args:
        modules: The module of each.
        forwards: Those that have been replaced.
        wrap: Replaces the forward of a module that has a use.
    """

    def __init__(
        self, modules: dict[Use, nn.Module], forwards: Forwards, wrap: Callable[[nn.Module], None]
    ) -> None:
        self._modules = modules
        self._forwards = forwards
        self._wrap = wrap

    def _within(self, use: Use) -> list[nn.Module]:
        return [*self._modules[use].modules()][1:]

    def ran_whole(self, use: Use) -> None:
        """All parts have run within it."""
        use.runs += 1
        if use.runs == _WHOLE_RUNS:
            use.closed = True
            self._forwards.restore(self._within(use))

    def open_up(self, use: Use) -> None:
        """Calls of the parts are looked at again."""
        if use.closed:
            use.closed = False
            for module in self._within(use):
                self._wrap(module)

    def reads(self, block: Block) -> None:
        """The block is read while no use of it is running."""
        for use in self._modules:
            if use.closed and block in use.blocks:
                self.open_up(use)
