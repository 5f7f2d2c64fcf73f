# SPDX-License-Identifier: Apache-2.0
"""Which experts a router chose, and what they cost whoever pages: Belady's MIN, LRU, by chance."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any

from torch import nn

from penstock.bound import must_cross


def min_misses(uses: Sequence[Hashable], capacity: int, start: int = 0) -> int:
    """Of the uses from `start` on, those that find nothing in a store that knows the future.

    MIN (Belady, A study of replacement algorithms for a virtual-storage computer, 1966): what is
    used last goes, which may be what has just come; all are of one size.
    """
    never = len(uses)
    following, upcoming = [never] * len(uses), dict[Hashable, int]()
    for place in reversed(range(len(uses))):
        following[place] = upcoming.get(uses[place], never)
        upcoming[uses[place]] = place
    kept: dict[Hashable, int] = {}
    furthest: list[tuple[int, int]] = []  # (less its next use, where it was used), some of it stale
    missed = 0
    for place, unit in enumerate(uses):
        missed += unit not in kept and place >= start
        kept[unit] = place
        heappush(furthest, (-following[place], place))
        while len(kept) > capacity:
            _, last = heappop(furthest)
            if kept.get(uses[last]) == last:
                del kept[uses[last]]
    return missed


def lru_misses(uses: Sequence[Hashable], capacity: int, start: int = 0) -> int:
    """The same of a store that drops what was used least recently."""
    kept: OrderedDict[Hashable, None] = OrderedDict()
    missed = 0
    for place, unit in enumerate(uses):
        missed += unit not in kept and place >= start
        kept[unit] = None
        kept.move_to_end(unit)
        if len(kept) > capacity:
            kept.popitem(last=False)
    return missed


def experts_of(model: nn.Module) -> list[nn.Module]:
    """The modules whose own tensors are [experts, ...]."""
    modules = [(module, list(module.parameters(recurse=False))) for module in model.modules()]
    return [module for module, own in modules if own and all(p.dim() == 3 for p in own)]


class Choices:
    """Takes down which experts each pass chooses.

    Attributes:
        passes: Of each call of the model's forward, layer and expert in the order of their uses.
        unit: Bytes of one expert, and `total` those of all.
    """

    def __init__(self, model: nn.Module) -> None:
        self.passes: list[list[tuple[int, int]]] = []
        experts = experts_of(model)
        self.total = sum(p.nbytes for module in experts for p in module.parameters())
        self.unit = sum(p.nbytes // len(p) for p in experts[0].parameters())
        self._handles = [model.register_forward_pre_hook(lambda *_: self.passes.append([]))]
        for layer, module in enumerate(experts):
            hook = partial(self._chosen, layer)
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def _chosen(self, layer: int, _: nn.Module, args: Any, more: dict[str, Any]) -> None:
        indices = more["top_k_index"] if "top_k_index" in more else args[1]
        self.passes[-1] += [(layer, expert) for expert in indices.unique().tolist()]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def bounds(self, room: int, dense: int, hot: int) -> dict[str, int | float]:
        """Bytes that cross the link per token, of the second half of the tokens.

        `room` is for `dense`, which every pass reads, and for experts in what that leaves. The
        text is the second of two alike, and so the choices are taken twice.

        Args:
            room: Bytes of the device.
            dense: Bytes of all that is no expert.
            hot: One in so many of each layer's experts, from the first on, is to be a favourite.
        """
        decode = self.passes[1:]
        uses = [use for each in decode * 2 for use in each]
        late = [use for each in decode[len(decode) // 2 :] for use in each]
        count, start = len(decode) - len(decode) // 2, len(uses) - len(late)
        capacity = max(0, room - dense) // self.unit
        missing = max(0, dense - room)
        routed = len(late) * self.unit // count
        return {
            "min_bytes": missing + min_misses(uses, capacity, start) * self.unit // count,
            "lru_bytes": missing + lru_misses(uses, capacity, start) * self.unit // count,
            "even_bytes": must_cross(dense, room, experts=self.total, chosen=routed),
            "routed_bytes": routed,
            "expert_bytes": self.unit,
            "hot_share": round(sum(expert % hot == 0 for _, expert in late) / len(late), 3),
        }
