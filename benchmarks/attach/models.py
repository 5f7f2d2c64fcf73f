# SPDX-License-Identifier: Apache-2.0
"""The parts of one_budget.py that run one model: llama, generate, shapes, pages, fits."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import torch
from kit.card import ideal, same_bits
from kit.measure import spread
from kit.record import OutOfTime
from kit.resident import TOKENS, Resident, by_turns
from models.cases import Case, held_out
from models.held_out import Subject, outputs, subject

from attach.suite import Suite, memory
from penstock.units import MIB, parse_size

BUDGETS = ("4GiB", "8GiB", "12GiB")
SMALL_SHARES = dict(zip(BUDGETS, (0.5, 0.65, 0.8), strict=True))
SHARES = {2: "half", 3: "a third", 4: "a quarter"}  # of what a model needs
ORDERS = {"small first": "SLSLSLSLSL", "large first": "LSSLLSSLLS"}


def budget_of(suite: Suite, full: str, weights: int) -> int:
    return parse_size(suite.card.budget(full, weights, SMALL_SHARES.get(full, 0.5)))


def share_of(suite: Suite, needed: int) -> int:
    """A half of what a model needs, or another share of it, in whole MiB on a card."""
    share = suite.args.share
    return needed // share if suite.card.small else needed // share // MIB * MIB


class Sized(NamedTuple):
    """A pass of one size: its name, what it is given, the resident step."""

    name: str
    given: dict[str, Any]
    resident: Resident


def llama(suite: Suite) -> None:
    """Forward passes of two sizes, alone and after each other."""
    card = suite.card
    sizes = {"S": (1, 16), "L": (2, 32)} if card.small else {"S": (1, 1024), "L": (4, 2048)}
    recipe = subject("llama", small=card.small)
    model = recipe.resident(card.device)
    passes = {}
    for key, (batch, length) in sizes.items():
        name = f"llama {batch} x {length}"
        given = recipe.make_inputs(model, batch, length, card.device)
        resident = suite.resident("llama", name, [model], partial(model, **given))
        passes[key] = Sized(name, given, resident)
    for text in BUDGETS:
        budget = budget_of(suite, text, passes["S"].resident.weights)
        for order, keys in ORDERS.items():
            how = f"attached, {order}"
            run = partial(_llama_in_order, suite, recipe, passes, budget, how, keys)
            suite.row("llama", "both", f"{how}: all rows of it", run)


def _llama_in_order(
    suite: Suite, recipe: Subject, passes: dict[str, Sized], budget: int, how: str, keys: str
) -> dict[str, Any]:
    """Attach once; each size by itself, then one after the other."""
    card = suite.card
    meta, load = recipe.build("meta"), recipe.loader(card.device)
    with card.attached(meta, budget, load=load) as (held, watch):
        steps = {key: partial(held.model, **one.given) for key, one in passes.items()}
        for key in dict.fromkeys(keys):
            run = partial(suite.attached, passes[key].resident, steps[key], held, watch, budget)
            suite.row("llama", passes[key].name, how, run)
        times: dict[str, list[float]] = {key: [] for key in steps}
        ideals: dict[str, list[float]] = {key: [] for key in steps}
        before = passes[next(reversed(steps))].resident
        for key in keys * 2:
            suite.check_time()
            resident = passes[key].resident
            own, (beside,) = by_turns(card, steps[key], resident.step, steps=1, warmups=0)
            times[key] += own
            # It begins with what was left beside the other's tensors.
            room = budget - max(resident.others, before.others)
            before = resident
            ideals[key].append(ideal(beside, before.touched, room, held.link()[0])["ideal_ms"])

        def in_turn(key: str) -> dict[str, Any]:
            """Held against the sum of the ideals, as rounds differ by what ran before."""
            exact = same_bits(outputs(steps[key]()), passes[key].resident.references)
            row = {"exact": exact, **spread(times[key]), **memory(held, watch, budget)}
            if not card.small:
                total = sum(ideals[key])
                row["ideal_ms"] = round(total / len(ideals[key]), 3)
                row["ratio_to_ideal"] = sum(times[key]) / total
            return row

        for key, one in passes.items():
            suite.row("llama", one.name, f"{how}, in turn", partial(in_turn, key))
        return memory(held, watch, budget)


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


# ---- shapes, pages, fits --------------------------------------------------------------------


SHAPES_OF_PART = "gemma qwen2 phi opt bloom mamba t5 bert vit clip sdxl-unet flux whisper".split()


def shapes(suite: Suite) -> None:
    """Architectures as they come from transformers and diffusers."""
    _halves(suite, "shapes", SHAPES_OF_PART, ["default"])


def pages(suite: Suite) -> None:
    """How large a page, and how much in flight: the sweep behind attach()'s defaults."""
    _halves(suite, "pages", ["phi", "gemma", "opt"], suite.args.settings)


def _halves(suite: Suite, part: str, names: list[str], settings: list[str]) -> None:
    """Each model's steps within a share of what they need, with each setting."""
    for name in suite.args.only or names:
        try:
            suite.check_time()
            case = held_out(name, suite.card, TOKENS)
            residents = residents_of(suite, part, case, case.resident())
            budget = share_of(suite, max(each.needed for each in residents.values()))
            for setting in settings:
                how, more = f"attached, {SHARES[suite.args.share]} of it", {}
                if setting != "default":
                    words = zip(("look_ahead", "chunk_size"), setting.split("/"), strict=False)
                    how, more = f"{how}, {setting}", dict(words)
                attached_rows(suite, part, how, case, residents, budget, **more)
        except OutOfTime:
            raise
        except Exception as error:
            suite.fail(part, name, "before it was attached", error)
        suite.card.clear()


def fits(suite: Suite) -> None:
    """Models that fit: what declaring their uses costs, and that pages leave for a tensor."""
    card = suite.card
    for name in suite.args.only or ("bert", "vit"):
        suite.check_time()
        case = held_out(name, card, TOKENS)
        what, resident = next(iter(residents_of(suite, "fits", case, case.resident()).items()))
        budget = resident.needed * 5 // 4 // MIB * MIB + 64 * MIB
        model, load = case.fresh()
        with card.attached(model, budget, load=load) as (held, watch):
            step = case.steps(model)[what]
            run = partial(suite.attached, resident, step, held, watch, budget)
            suite.row("fits", what, "attached", run)
            room = torch.empty(budget - resident.needed // 2, dtype=torch.uint8, device=card.device)
            suite.row("fits", what, "beside a tensor", run)
            del room
            card.clear()
            suite.row("fits", what, "after it", run)
        del resident


def residents_of(suite: Suite, part: str, case: Case, model: Any) -> dict[str, Resident]:
    """The steps of a case with everything on the card."""
    parts = case.parts(model)
    return {w: suite.resident(part, w, parts, step) for w, step in case.steps(model).items()}


def attached_rows(
    suite: Suite,
    part: str,
    how: str,
    case: Case,
    residents: dict[str, Resident],
    budget: int,
    **more: Any,
) -> float | None:
    """The rows of one attachment; GB/s of its link, or None where it failed."""
    try:
        suite.check_time()
        model, load = case.fresh()
        with suite.card.attached(model, budget, load=load, **more) as (held, watch):
            for what, step in case.steps(model).items():
                row = partial(suite.attached, residents[what], step, held, watch, budget)
                suite.row(part, what, how, row)
            return float(held.link()[0])
    except Exception as error:
        suite.fail(part, case.name, how, error)
        suite.card.clear()
        return None
