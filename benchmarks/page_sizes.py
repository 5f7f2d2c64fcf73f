# SPDX-License-Identifier: Apache-2.0
"""How large a page, and how much in flight: the sweep behind attach()'s defaults.

    python benchmarks/page_sizes.py --models phi gemma --settings default 64MiB/4MiB 64MiB/16MiB

Each model of held_out_models.py runs within half of what weights and activations need, with each
setting: look-ahead, or look-ahead and page. Beside a forward pass of 512 tokens and one of 16 that
are generated stands the ideal (budget_card.py) of the forward pass.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from budget_card import Card
from held_out_models import Subject, subject
from measure import script_parser, spread
from resident import Resident, measure

from penstock.units import MIB

TOKENS = {"do_sample": False, "max_new_tokens": 16}


def options(setting: str) -> dict[str, str]:
    """attach()'s keywords for "default", "64MiB" or "64MiB/16MiB"."""
    names = ("look_ahead", "chunk_size")
    return {} if setting == "default" else dict(zip(names, setting.split("/"), strict=False))


def row(
    card: Card,
    recipe: Subject,
    given: Any,
    setting: str,
    budget: int,
    resident: Resident,
) -> str:
    """One setting's line."""
    meta, load = recipe.build("meta"), recipe.loader(card.device)
    with card.attached(meta, budget, load=load, **options(setting)) as (held, watch):
        forward = spread(card.time(partial(held.model, **given)))["median_ms"]
        before = held.stats()
        generate = partial(held.model.generate, **given, **TOKENS)
        token = spread(card.time(generate, steps=4, warmups=2))["median_ms"] / 16
        after = held.stats()
        bound = resident.bound(resident.step_ms, budget, held.link()[0])["ideal_ms"]
        watch.note(held)
        return (
            f"  {setting:>12}: forward {forward:.1f} ms ({forward / bound:.2f} of {bound:.1f}), "
            f"a token {token:.1f} ms, {before.iteration_bytes_in // MIB} MiB in, "
            f"{before.kept_pages} pages kept, {before.stream_slots} for the others, "
            f"{after.plans - before.plans} plans in {after.iterations - before.iterations} passes, "
            f"peak {(watch.peak() - budget) / MIB:+.0f} MiB"
        )


@torch.no_grad()
def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["phi", "gemma", "opt"])
    parser.add_argument("--settings", nargs="+", default=["default", "64MiB/4MiB", "64MiB/16MiB"])
    args = parser.parse_args()
    card = Card(small=False)
    for name in args.models:
        recipe = subject(name)
        model = recipe.resident(card.device)
        given = recipe.make_inputs(model, 1, 512, card.device)
        found = measure(card, [model], partial(model, **given))
        found.step = model = None  # neither it nor its weights are needed any more
        card.clear()
        budget = found.needed // 2 // MIB * MIB
        print(
            f"{name}: {budget // MIB} MiB of {found.needed // MIB}, resident {found.step_ms:.1f} ms"
        )
        for setting in args.settings:
            print(row(card, recipe, given, setting, budget, found), flush=True)


if __name__ == "__main__":
    main()
