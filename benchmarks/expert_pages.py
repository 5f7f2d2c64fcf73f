# SPDX-License-Identifier: Apache-2.0
"""Which experts' pages stay, by made-up routers: what a token reads over the link, and what moves.

    python benchmarks/expert_pages.py --output benchmarks/results/experts/pages.json

Sixteen layers of 128 experts, 6 and 3 MiB each in two tensors, eight per token, within 47 % of what
they take. How often an expert is chosen is drawn once from a log-normal distribution of this
deviation; some of the last token's are chosen again; popularity may be drawn anew after a while.
Rows are means over all tokens, learning included: of the rule of paging/gather.py with its
constants, with others, and of two that know single experts: none that is preferred (`even`), and
the least recently used leaves (`lru`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from attach.choices import lru_misses
from kit.measure import output_parser
from kit.record import Record

from penstock.paging.gather import FORGET, LOOK_AFTER, PRICE, most_read, next_look
from penstock.units import MIB

LAYERS, EXPERTS, CHOSEN, TOKENS = 16, 128, 8, 400
ROWS = (6 * MIB, 3 * MIB)  # of an expert in each of its tensors
SHARE = 0.47


class Router(NamedTuple):
    """How experts are drawn: deviation, how many stay, and for how many tokens it holds."""

    deviation: float
    stays: float
    tokens: int = TOKENS


ROUTERS = {
    "even": Router(0, 0),
    "little skewed": Router(0.7, 0),
    "skewed": Router(1, 0.2),
    "skewed, and changes": Router(1.5, 0.3, 100),
}


class Rule(NamedTuple):
    """Bytes of a page, and the constants of paging/gather.py."""

    page: int = 4 * MIB
    price: float = PRICE
    look: int = LOOK_AFTER
    forget: float = FORGET


def rules() -> Iterator[Rule]:
    """The rule, and each with another value in one place."""
    yield Rule()
    for name, values in {
        "page": (8 * MIB, 32 * MIB),
        "price": (1, 4),
        "look": (4, 64),
        "forget": (0, 1 / 8, 1 / 2),
    }.items():
        yield from (Rule(**{name: value}) for value in values)


def drawn(router: Router) -> list[list[list[int]]]:
    """Of each token and layer, the experts."""
    rng = np.random.default_rng(3)
    last: list[list[int]] = [[] for _ in range(LAYERS)]
    tokens = []
    for token in range(TOKENS):
        if token % router.tokens == 0:
            weights = np.exp(rng.normal(0, router.deviation, (LAYERS, EXPERTS)))
        for layer in range(LAYERS):
            kept = [expert for expert in last[layer] if rng.random() < router.stays]
            odds = weights[layer].copy()
            odds[kept] = 0
            more = rng.choice(EXPERTS, CHOSEN - len(kept), replace=False, p=odds / odds.sum())
            last[layer] = [*kept, *(int(expert) for expert in more)]
        tokens.append(list(last))
    return tokens


def page_bytes(page: int) -> np.ndarray:
    """Bytes of each expert (columns) on each page (rows) of one layer."""
    parts = []
    for row in ROWS:
        begins = np.arange(EXPERTS) * row
        first = np.arange(-(-EXPERTS * row // page))[:, None] * page
        overlap = np.minimum(begins + row, first + page) - np.maximum(begins, first)
        parts.append(np.clip(overlap, 0, None))
    return np.vstack(parts)


def by_rule(tokens: list[list[list[int]]], rule: Rule) -> dict[str, float]:
    """MB per token, read in place and moved."""
    shape = page_bytes(rule.page)
    pages, room = len(shape) * LAYERS, int(sum(ROWS) * EXPERTS * LAYERS * SHARE) // rule.page
    stay = set(range(room))
    is_there = np.arange(pages) < room
    counts, read, moved, look_at = np.zeros(pages), 0.0, 0, 1
    for passes, token in enumerate(tokens, 1):
        chosen = np.zeros((LAYERS, EXPERTS))
        for layer, experts in enumerate(token):
            chosen[layer, experts] = 1
        now = (chosen @ shape.T).ravel()
        read += now[~is_there].sum()
        counts += now
        if passes >= look_at:
            found = dict(enumerate(counts.tolist()))
            after = most_read(found, stay, room, price=rule.price * rule.page)
            moved += len(after - stay) * rule.page
            stay, look_at = after, next_look(passes, rule.look)
            is_there = np.isin(np.arange(pages), list(stay))
            counts *= 1 - rule.forget
    return {"read_mb": round(read / TOKENS / 1e6, 1), "moved_mb": round(moved / TOKENS / 1e6, 1)}


def main() -> int:
    args = output_parser(__doc__).parse_args()
    record = Record(args.output, title="Which experts' pages stay, by made-up routers", card=False)
    unit = sum(ROWS)
    for name, router in ROUTERS.items():
        tokens = drawn(router)
        uses = [(la, e) for token in tokens for la, experts in enumerate(token) for e in experts]
        missed = lru_misses(uses, int(EXPERTS * LAYERS * SHARE))
        even = LAYERS * CHOSEN * unit * (1 - SHARE)
        row: dict[str, Any] = {"router": name, "rule": "even", "read_mb": round(even / 1e6, 1)}
        record.add(row)
        moved = round(missed * unit / TOKENS / 1e6, 1)
        record.add({"router": name, "rule": "lru", "read_mb": 0.0, "moved_mb": moved})
        for rule in rules():
            words = "penstock" if rule == Rule() else "other"
            record.add({"router": name, "rule": words, **rule._asdict(), **by_rule(tokens, rule)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
