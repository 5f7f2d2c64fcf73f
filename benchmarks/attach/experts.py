# SPDX-License-Identifier: Apache-2.0
"""The part of one_budget.py on mixtures of experts: moe.

Each token of a text is timed, and held against what its experts cost those who know which ones
come next: Belady's MIN over the choices that the router made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from kit.card import weight_bytes
from kit.measure import spread
from kit.record import OutOfTime
from kit.resident import move_outside
from models.held_out import Subject, subject

from attach.choices import Choices, experts_of
from attach.models import SHARES, Clock, share_of
from attach.suite import Suite, memory
from penstock.bound import shortest_ms

ROUTERS = ("uniform", "skewed")
EXPERTS = "grouped_mm"  # how transformers applies them
HOT_SHARE = 8  # of a skewed router's experts every eighth is hot
HOT_FACTOR = 4  # a power of two: no bit of the weights is lost


class Lengths(NamedTuple):
    """Tokens of the prompt and behind it, the first that counts, and those of a forward pass."""

    prompt: int
    new: int
    first: int
    forward: int


def moe(suite: Suite) -> None:
    """Experts: eight of 128 per token, and two of eight, evenly chosen and with favourites."""
    lengths = Lengths(8, 8, 1, 16) if suite.card.small else Lengths(128, 48, 7, 1024)
    for name in suite.args.only or ("qwen3-moe", "mixtral"):
        for router in suite.args.routers:
            what = f"{name}, {router}, {EXPERTS}"
            try:
                _mixture(suite, what, name, router, lengths)
            except OutOfTime:
                raise
            except Exception as error:
                suite.fail("moe", what, "before it was attached", error)
            suite.card.clear()


# ---- A model, resident and attached --------------------------------------------------------


def favour(name: str, weight: torch.Tensor, experts: int) -> None:
    """Have every eighth expert of a router chosen by most tokens, if the tensor is a router's."""
    if name.endswith(".gate.weight") and len(weight) == experts:
        weight[::HOT_SHARE].mul_(HOT_FACTOR)


def _made(model: Any) -> Any:
    """The model, with its experts applied so, but where generate() knows better."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation(EXPERTS)
    else:
        model.config._experts_implementation = EXPERTS
    return model


def _loader(recipe: Subject, device: Any, experts: int) -> Callable[[str, torch.Tensor], None]:
    load = recipe.loader(device)

    def filled(name: str, destination: torch.Tensor) -> None:
        load(name, destination)
        favour(name, destination, experts)

    return filled


def _mixture(suite: Suite, what: str, name: str, router: str, lengths: Lengths) -> None:
    """A text token by token, and a long prompt's pass, within a share of what they need."""
    suite.check_time()
    card = suite.card
    recipe = subject(name, small=card.small)
    model = _made(recipe.resident(card.device))
    experts = len(next(experts_of(model)[0].parameters()))
    if router == "skewed":
        for key, parameter in model.named_parameters():
            favour(key, parameter.data, experts)
    move_outside(model)
    given = recipe.make_inputs(model, 1, lengths.prompt, card.device)
    long = recipe.make_inputs(model, 1, lengths.forward, card.device)
    options = {"do_sample": False, "max_new_tokens": lengths.new, "disable_compile": True}

    def run(
        model: Any, after: Callable[[], None] = lambda: None
    ) -> tuple[torch.Tensor, Clock, str]:
        """The text; its tokens' times; how experts were applied, which generate() may change."""
        used: list[str] = []

        def note(ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            used.append(model.config._experts_implementation)
            after()
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        card.forget_peak()
        clock = Clock(suite, 1, lengths.new)
        made = model.generate(**given, **options, stopping_criteria=[clock, note]).cpu()
        suite.check_time()
        return made, clock, used[-1]

    def figures(clock: Clock) -> dict[str, Any]:
        late = spread(clock.times[lengths.first :])
        return {**late, "first_token_ms": round(clock.times[0], 3)}

    choices = Choices(model)
    run(model)
    choices.remove()
    card.clear()
    before = card.allocated()
    made, clock, used = run(model)
    weights = weight_bytes(model)
    prompt, others = (max(0, max(peaks) - before) for peaks in (clock.peaks, clock.peaks[1:]))
    distinct = len(made[0, lengths.prompt :].unique())
    common = {"weight_bytes": weights, "prompt_others_bytes": prompt, "others_bytes": others}
    how = f"generate {lengths.new}"
    row = {**common, "distinct_tokens": distinct, "experts": used, **figures(clock)}
    suite.row("moe", what, f"{how}, resident", lambda: row)
    again, clock, _ = run(model)
    aa = {"exact": torch.equal(again, made), **figures(clock)}
    suite.row("moe", what, f"{how}, resident, again (A/A)", lambda: aa)
    forward = suite.resident("moe", what, [model], partial(model, **long))
    budget = share_of(suite, weights + max(prompt, forward.others))
    dense = weights - choices.total
    table = model.get_input_embeddings().weight
    if table is not model.get_output_embeddings().weight:
        dense -= table.nbytes  # its rows are read on the host

    def generated(held: Any, watch: Any) -> dict[str, Any]:
        learnt, _, _ = run(held.model)
        got, clock, used = run(held.model)
        row = {"exact": torch.equal(learnt, made) and torch.equal(got, made), "experts": used}
        row.update(**figures(clock), **memory(held, watch, budget))
        counted: list[tuple[int, int]] = []  # of the text once more, since asking takes time

        def count() -> None:
            stats = held.stats()
            counted.append((stats.in_place_bytes, stats.bytes_in))

        run(held.model, count)
        tokens = len(counted) - lengths.first
        row["in_place_bytes"] = sum(read for read, _ in counted[lengths.first :]) // tokens
        row["moved_bytes"] = (counted[-1][1] - counted[lengths.first - 1][1]) // tokens
        beside = spread(run(model)[1].times[lengths.first :])
        row.update({f"resident_{key}": value for key, value in beside.items()})
        bounds = choices.bounds(budget - others, dense, HOT_SHARE)
        link = held.link()[0]
        best = shortest_ms(beside["median_ms"], (int(bounds["min_bytes"]), link))
        bound = {"ideal_ms": round(best, 3), "link_gb_per_s": round(link, 2)}
        return {**row, **bounds, **suite.against(bound, row["median_ms"])}

    attached_in = f"attached, {SHARES[suite.args.share]} of it"

    def attached() -> dict[str, Any]:
        meta = _made(recipe.build("meta"))
        skewed = router == "skewed"
        load = _loader(recipe, card.device, experts) if skewed else recipe.loader(card.device)
        with card.attached(meta, budget, load=load) as (held, watch):
            suite.row("moe", what, f"{how}, {attached_in}", partial(generated, held, watch))
            step = partial(held.model, **long)
            row = partial(suite.attached, forward, step, held, watch, budget)
            suite.row("moe", what, attached_in, row)
            return memory(held, watch, budget)

    suite.row("moe", what, "attached: all rows of it", attached)
