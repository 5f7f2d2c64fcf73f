# SPDX-License-Identifier: Apache-2.0
"""The parts of one_budget.py that run one model: llama, generate, shapes, fits."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from budget_card import ideal, same_bits
from held_out_models import Subject, outputs, subject
from held_out_shapes import SIZES
from measure import spread
from one_budget_suite import Suite, memory
from record import OutOfTime
from resident import Resident, by_turns, steps_of

from penstock.units import MIB, parse_size

BUDGETS = ("4GiB", "8GiB", "12GiB")
SMALL_SHARES = dict(zip(BUDGETS, (0.5, 0.65, 0.8), strict=True))
ORDERS = {"small first": "SLSLSLSLSL", "large first": "LSSLLSSLLS"}


def budget_of(suite: Suite, full: str, weights: int) -> int:
    return parse_size(suite.card.budget(full, weights, SMALL_SHARES.get(full, 0.5)))


def half(suite: Suite, needed: int) -> int:
    """Half of what a model needs, in whole MiB on a card."""
    return needed // 2 if suite.card.small else needed // 2 // MIB * MIB


def llama(suite: Suite) -> None:
    """Forward passes of two sizes, alone and after each other."""
    card = suite.card
    sizes = {"S": (1, 16), "L": (2, 32)} if card.small else {"S": (1, 1024), "L": (4, 2048)}
    names = {key: f"llama {batch} x {length}" for key, (batch, length) in sizes.items()}
    recipe = subject("llama", small=card.small)
    model = recipe.resident(card.device)
    inputs = {k: recipe.make_inputs(model, *size, card.device) for k, size in sizes.items()}
    residents = {}
    for key, given in inputs.items():
        step = partial(model, **given)
        residents[key] = suite.resident("llama", names[key], [model], step)
    for text in BUDGETS:
        budget = budget_of(suite, text, residents["S"].weights)
        for order, keys in ORDERS.items():
            how = f"attached, {order}"
            suite.row(
                "llama",
                "both",
                f"{how}: all rows of it",
                partial(
                    _llama_in_order, suite, recipe, inputs, names, residents, budget, how, keys
                ),
            )


def _llama_in_order(
    suite: Suite,
    recipe: Subject,
    inputs: dict[str, Any],
    names: dict[str, str],
    residents: dict[str, Resident],
    budget: int,
    how: str,
    keys: str,
) -> dict[str, Any]:
    """Attach once; each size by itself, then one after the other."""
    card = suite.card
    meta, load = recipe.build("meta"), recipe.loader(card.device)
    with card.attached(meta, budget, load=load) as (held, watch):
        model = held.model
        steps = {key: partial(model, **given) for key, given in inputs.items()}
        for key in dict.fromkeys(keys):
            suite.row(
                "llama",
                names[key],
                how,
                partial(suite.attached, residents[key], steps[key], held, watch, budget),
            )
        times: dict[str, list[float]] = {key: [] for key in steps}
        bounds: dict[str, list[dict[str, Any]]] = {key: [] for key in steps}
        before = residents[next(reversed(steps))]
        for key in keys * 2:
            suite.check_time()
            own, (beside,) = by_turns(card, steps[key], residents[key].step, steps=1, warmups=0)
            times[key] += own
            # It begins with what was left beside the other's tensors.
            room = budget - max(residents[key].others, before.others)
            before = residents[key]
            bounds[key].append(ideal(beside, before.touched, room, held.link()[0]))
        for key, samples in times.items():
            suite.row(
                "llama",
                names[key],
                f"{how}, in turn",
                partial(
                    _in_turn,
                    suite,
                    residents[key],
                    steps[key],
                    samples,
                    bounds[key],
                    held,
                    watch,
                    budget,
                ),
            )
        return memory(held, watch, budget)


def _in_turn(
    suite: Suite,
    resident: Resident,
    step: Any,
    samples: list[float],
    bounds: list[dict[str, Any]],
    held: Any,
    watch: Any,
    budget: int,
) -> dict[str, Any]:
    """Held against the sum of the ideals, as rounds differ by what ran before."""
    exact = same_bits(outputs(step()), resident.references)
    total = sum(bound["ideal_ms"] for bound in bounds)
    mean = {"ideal_ms": round(total / len(bounds), 3)}
    against = {} if suite.card.small else {**mean, "ratio_to_ideal": sum(samples) / total}
    return {"exact": exact, **spread(samples), **against, **memory(held, watch, budget)}


# ---- generate ------------------------------------------------------------------------------


class Clock:
    """A stopping criterion that measures: each token's time, and the peak of each bin of tokens."""

    def __init__(self, suite: Suite, bin_size: int, limit: int) -> None:
        self._suite, self._bin_size, self._limit = suite, bin_size, limit
        self.times: list[float] = []
        self.peaks: list[int] = []
        self._last = time.perf_counter()

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        card = self._suite.card
        card.synchronize()
        now = time.perf_counter()
        self.times.append((now - self._last) * 1e3)
        self._last = now
        if len(self.times) % self._bin_size == 0 or len(self.times) == self._limit:
            self.peaks.append(card.peak())
            card.forget_peak()
        over = self._suite.left < 0
        return torch.full((input_ids.shape[0],), over, device=input_ids.device)

    def bins(self) -> list[list[float]]:
        """Times by bins, without the first token's, which is the prompt's pass."""
        times = [float("nan"), *self.times[1:]]
        cut = range(0, len(times), self._bin_size)
        return [[t for t in times[n : n + self._bin_size] if t == t] for n in cut]


def generate(suite: Suite) -> None:
    """Long generation with a cache that grows, or lies there from the beginning."""
    card = suite.card
    batch, prompt, tokens, bin_size = (
        (2, 8, 24, 8) if card.small else (4, 128, suite.args.new_tokens, 250)
    )
    recipe = subject("llama", small=card.small)
    model = recipe.resident(card.device)
    given = recipe.make_inputs(model, batch, prompt, card.device)
    more = {"do_sample": False, "max_new_tokens": tokens, "disable_compile": True}
    weights = sum(p.nbytes for p in model.parameters())
    table = model.get_input_embeddings().weight
    touched = weights - (table.nbytes * (1 - batch / len(table)))  # a token per sequence: rows
    budget = budget_of(suite, "8GiB", weights)

    def run(model: Any, cache: str, limit: int) -> tuple[torch.Tensor, Clock]:
        card.forget_peak()
        clock = Clock(suite, bin_size, limit)
        options = {**more, "max_new_tokens": limit, "cache_implementation": cache}
        made = model.generate(**given, **options, stopping_criteria=[clock])
        return made.cpu(), clock

    found = {}
    for cache in suite.args.caches:
        how = f"generate {batch} x {tokens}, {cache}"
        card.clear()
        before = card.allocated()
        made, clock = run(model, cache, tokens)
        found[cache] = made, clock, [peak - before for peak in clock.peaks]
        bins = [{**spread(times), "samples_ms": []} for times in clock.bins()]
        suite.row(
            "generate",
            how,
            "resident",
            partial(dict, bins=bins, others_bytes=found[cache][2], **spread(clock.times[1:])),
        )
        short = min(tokens, bin_size)
        again, clock = run(model, cache, short)
        # A static cache of another size is read by other kernels, which may round otherwise.
        same = {"exact": torch.equal(again, made[:, : again.shape[1]])}
        how_again = f"resident, again (A/A), {short} tokens"
        figures = {**spread(clock.times[1:]), **(same if cache == "dynamic" else {})}
        suite.row("generate", how, how_again, partial(dict, **figures))
    del model, table
    for cache in suite.args.caches:
        how = f"generate {batch} x {tokens}, {cache}"

        def measure(cache: str = cache) -> dict[str, Any]:
            made, resident, others = found[cache]
            meta, load = recipe.build("meta"), recipe.loader(card.device)
            with card.attached(meta, budget, load=load) as (held, watch):
                link = held.link()[0]
                got, clock = run(held.model, cache, tokens)
                bins = []
                for own, base, rest in zip(clock.bins(), resident.bins(), others, strict=False):
                    if own:
                        bound = ideal(
                            spread(base)["median_ms"], [int(touched)], budget - rest, link
                        )
                        figures = {**spread(own), "samples_ms": []}
                        bins.append({**figures, **suite.against(bound, figures["median_ms"])})
                whole = {**spread(clock.times[1:]), "first_token_ms": round(clock.times[0], 1)}
                if not card.small:
                    ratios = [each["ratio_to_ideal"] for each in bins]
                    whole.update(
                        ideal_ms=bins[-1]["ideal_ms"],
                        ratio_to_ideal=max(ratios),
                        note=f"{len(clock.times)} tokens, the largest of bins {ratios}",
                    )
                exact = torch.equal(got, made[:, : got.shape[1]])
                return {"exact": exact, "bins": bins, **whole, **memory(held, watch, budget)}

        suite.row("generate", how, "attached", measure)


# ---- shapes, fits ---------------------------------------------------------------------------


SHAPES_OF_PART = "gemma qwen2 phi opt bloom mamba t5 bert vit clip sdxl-unet flux whisper".split()


def shapes(suite: Suite) -> None:
    """Architectures as they come from transformers and diffusers."""
    for name in suite.args.only or SHAPES_OF_PART:
        try:
            half_of_what_it_needs(suite, "shapes", name, *SIZES.get(name, (1, 512)))
        except OutOfTime:
            raise
        except Exception as error:
            suite.fail("shapes", name, "before it was attached", error)
        suite.card.clear()


def fits(suite: Suite) -> None:
    """Models that fit: what declaring their uses costs, and that pages leave for a tensor."""
    card = suite.card
    for name in suite.args.only or ("bert", "vit"):
        suite.check_time()
        recipe = subject(name, small=card.small)
        size = (1, 16) if card.small else SIZES.get(name, (1, 512))
        what, resident = next(iter(_residents(suite, "fits", recipe, size).items()))
        budget = resident.needed * 5 // 4 // MIB * MIB + 64 * MIB
        meta, load = recipe.build("meta"), recipe.loader(card.device)
        step = steps_of(recipe, meta, recipe.make_inputs(meta, *size, card.device))[what]
        with card.attached(meta, budget, load=load) as (held, watch):
            run = partial(suite.attached, resident, step, held, watch, budget)
            suite.row("fits", what, "attached", run)
            room = torch.empty(budget - resident.needed // 2, dtype=torch.uint8, device=card.device)
            suite.row("fits", what, "beside a tensor", run)
            del room
            card.clear()
            suite.row("fits", what, "after it", run)
        del resident


def _residents(
    suite: Suite, part: str, recipe: Subject, size: tuple[int, int]
) -> dict[str, Resident]:
    """Its steps with everything on the card."""
    model = recipe.resident(suite.card.device)
    given = recipe.make_inputs(model, *size, suite.card.device)
    steps = steps_of(recipe, model, given)
    return {what: suite.resident(part, what, [model], step) for what, step in steps.items()}


def half_of_what_it_needs(suite: Suite, part: str, name: str, batch: int, length: int) -> None:
    """A forward pass, and some tokens where it makes any, within half of what they need."""
    suite.check_time()
    card = suite.card
    recipe = subject(name, small=card.small)
    size = batch, min(length, 16) if card.small else length
    residents = _residents(suite, part, recipe, size)
    budget = half(suite, max(each.needed for each in residents.values()))

    def measure() -> dict[str, Any]:
        meta, load = recipe.build("meta"), recipe.loader(card.device)
        given = recipe.make_inputs(meta, *size, card.device)
        with card.attached(meta, budget, load=load) as (held, watch):
            for what, step in steps_of(recipe, held.model, given).items():
                row = partial(suite.attached, residents[what], step, held, watch, budget)
                suite.row(part, what, "attached, half of it", row)
            return memory(held, watch, budget)

    suite.row(part, name, "attached: all rows of it", measure)
