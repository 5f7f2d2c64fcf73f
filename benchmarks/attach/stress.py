# SPDX-License-Identifier: Apache-2.0
"""The parts of one_budget.py that go for the edges: two, random, cycles."""

from __future__ import annotations

import copy
import os
import random as chance
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kit.card import digest, ideal
from kit.measure import spread
from kit.resident import move_outside
from models.held_out import outputs, subject
from torch import nn

import penstock
from attach.suite import Suite, memory
from penstock.errors import OutOfMemory
from penstock.units import parse_size

IN_TURN = (
    ("llama-medium", (40, 36)),
    ("llama-medium", (24, 24, 20)),
    ("llama", (12, 11)),
    ("llama", (8, 7, 6)),
)
REFUSED = (torch.OutOfMemoryError, OutOfMemory)


def two(suite: Suite) -> None:
    """Two and three models in turn, none of which fits into its share.

    First many small layers, where the host sets the pace, then few large ones, where the link does.
    """
    for shape, layers in IN_TURN:
        suite.check_time()
        _models_in_turn(suite, shape, layers)
        suite.card.clear()


def _models_in_turn(suite: Suite, shape: str, layers: tuple[int, ...]) -> None:
    card = suite.card
    name = f"{len(layers)} of {shape} in turn"
    recipes = [
        subject(shape, small=card.small, num_hidden_layers=4 + n if card.small else count)
        for n, count in enumerate(layers)
    ]
    models = [recipe.resident(card.device) for recipe in recipes]
    length = 16 if card.small else 512
    given = [
        recipe.make_inputs(model, 1, length + number, card.device)
        for number, (recipe, model) in enumerate(zip(recipes, models, strict=True))
    ]

    def passes(each: list[nn.Module]) -> list[torch.Tensor]:
        pairs = zip(each, given, strict=True)
        return [tensor for model, inputs in pairs for tensor in outputs(model(**inputs))]

    resident = suite.resident("two", name, models, partial(passes, models))
    budget = parse_size(card.budget("8GiB", resident.weights))
    loads = [recipe.loader(card.device) for recipe in recipes]

    def load(name: str, destination: torch.Tensor) -> None:
        number, _, rest = name.partition(".")
        loads[int(number)](rest, destination)

    def together() -> dict[str, Any]:
        metas = [recipe.build("meta") for recipe in recipes]
        with card.attached(metas, budget, load=load) as (held, watch):
            return suite.attached(resident, partial(passes, metas), held, watch, budget)

    def one_by_one() -> dict[str, Any]:
        metas = [recipe.build("meta") for recipe in recipes]
        with ExitStack() as stack:
            share = budget // len(models)
            pairs = [
                stack.enter_context(card.attached(meta, share, load=one))
                for meta, one in zip(metas, loads, strict=True)
            ]
            return suite.attached(resident, partial(passes, metas), *pairs[0], budget)

    suite.row("two", name, "one attachment", together)
    suite.row("two", name, "an attachment each, equal shares", one_by_one)


# ---- random --------------------------------------------------------------------------------


def random(suite: Suite) -> None:
    """Passes of random batch and length, whose activations take 1 to 80 % of the budget.

    All of the resident model's come first: beside an attached one they would have pages leave.
    """
    card = suite.card
    recipe = subject("llama-medium", small=card.small)
    model = move_outside(recipe.resident(card.device))
    weights = sum(p.nbytes for p in model.parameters())
    touched = weights - model.get_input_embeddings().weight.nbytes
    budget = parse_size(card.budget("3GiB", weights))
    longest = 32 if card.small else 2048
    peaks = [
        peak_of(suite, model, recipe.make_inputs(model, batch, length, card.device))
        for batch, length in ((1, 8), (2, longest), (1, 8))  # the first one makes workspaces
    ]
    per_token = max(1.0, (peaks[1] - peaks[2]) / (2 * longest - 8))
    base = max(0.0, peaks[2] - 8 * per_token)
    draw = chance.Random(0)
    sizes = []
    for _ in range(20 if card.small else suite.args.passes):
        wanted = draw.uniform(0.01, 0.8) * budget
        tokens = draw.randint(1, 64) if card.small else max(8, int((wanted - base) / per_token))
        batch = max(1, round(tokens / draw.randint(min(8, tokens), min(longest, tokens))))
        sizes.append((batch, max(1, min(longest, tokens // batch))))

    def timed(of: nn.Module, given: dict[str, Any]) -> tuple[float, int]:
        """Milliseconds of a pass, and the digest of what it gave."""
        results: list[torch.Tensor] = []
        times = card.time(lambda: results.extend(outputs(of(**given))), warmups=0, steps=1)
        return times[0], digest(results)

    def measure() -> dict[str, Any]:
        errors: list[str] = []
        wrong, times, bounds = 0, [], []
        plain = []
        for size in sizes:
            if suite.left < len(plain) * 0.5:  # the attached ones want their time
                break
            plain.append(timed(model, recipe.make_inputs(model, *size, card.device)))
        meta, load = recipe.build("meta"), recipe.loader(card.device)
        with card.attached(meta, budget, load=load) as (held, watch):
            link = held.link()[0]
            for (batch, length), (base_ms, reference) in zip(sizes, plain, strict=False):
                if suite.left < 0:
                    break
                given = recipe.make_inputs(model, batch, length, card.device)
                try:
                    ms, found = timed(held.model, given)
                except Exception as error:
                    errors.append(f"{batch} x {length}: {type(error).__name__}: {error}"[:300])
                    continue
                times.append(ms)
                wrong += found != reference
                room = int(budget - base - per_token * batch * length)
                bounds.append(ideal(base_ms, [touched], room, link)["ideal_ms"])
            row = memory(held, watch, budget)
        row.update(spread(times), errors=errors[:20], exact=not wrong)
        beside = spread([ms for ms, _ in plain])
        row.update({f"resident_{key}": value for key, value in beside.items()})
        if errors:
            raise AssertionError(f"{len(errors)} of {len(sizes)} passes failed: {errors[0]}")
        if not card.small:
            row["ideal_ms"] = round(sum(bounds) / len(bounds), 3)
            row["ratio_to_ideal"] = round(sum(times) / sum(bounds), 4)
        low, high = (round(s / budget, 3) for s in (base + 8 * per_token, 0.8 * budget))
        done = f"{len(times)} of {len(sizes)} passes"
        row["note"] = f"{done}, activations {low} to {high} of it; ratio of the totals"
        return row

    suite.row("random", "llama-medium", "attached", measure)


def peak_of(suite: Suite, model: nn.Module, given: dict[str, Any]) -> int:
    """Bytes that a resident pass takes beside the weights."""
    card = suite.card
    before = card.allocated()
    card.forget_peak()
    model(**given)
    return max(0, card.peak() - before)


# ---- cycles --------------------------------------------------------------------------------


def process_state(suite: Suite) -> dict[str, int]:
    """What must not grow."""
    suite.card.clear()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "device_bytes": suite.card.used(),
        "host_rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "file_descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def cycles(suite: Suite) -> None:
    """Attach and detach over and over, with exceptions in between."""
    suite.row("cycles", "8 linear layers", "attach, pass, detach", partial(_cycles, suite))


def _cycles(suite: Suite) -> dict[str, Any]:
    card = suite.card
    width, count = (128, 40) if card.small else (1024, suite.args.cycles)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(8)]).eval()
    weights = sum(p.nbytes for p in model.parameters())
    # On a card the library's workspaces take about half of it.
    budget = weights * 3 // 4 if card.small else 72 << 20
    given = torch.ones(2, width, device=card.device)
    wanted = copy.deepcopy(model).to(card.device)(given)
    settled, first, wrong = count // 5, {}, 0
    for cycle in range(count):
        suite.check_time()
        held = penstock.attach(model, gpu_memory=budget, **card.options(budget))
        result = model(given)
        wrong += not torch.equal(result, wanted)
        if cycle % 3 == 0:  # a pass that raises in its middle
            handle = model[4].register_forward_pre_hook(_raise)
            with suppress(ZeroDivisionError):
                model(given)
            handle.remove()
            wrong += not torch.equal(model(given), wanted)
        held.detach()
        if cycle % 5 == 0:  # an attach that is refused
            try:
                penstock.attach(model, gpu_memory=1, **card.options(budget)).detach()
                raise AssertionError("a budget of one byte was taken")
            except REFUSED:
                pass
        if cycle == settled:
            first = process_state(suite)
    last = process_state(suite)
    growth = {key: last[key] - first[key] for key in last}
    row = {"exact": not wrong, "cycles": count, "growth": growth, "state": last}
    allowed = {"device_bytes": 4 << 20, "host_rss_bytes": 8 << 20}
    grown = {key: size for key, size in growth.items() if size > allowed.get(key, 0)}
    if grown:
        raise AssertionError(f"grown after cycle {settled} of {count}: {grown}")
    return {**row, "note": f"{count} cycles, growth {growth}"}


def _raise(*_: Any) -> None:
    raise ZeroDivisionError
