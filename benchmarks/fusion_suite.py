# SPDX-License-Identifier: Apache-2.0
"""The fused layers on one card: checks, then all of docs/fusion-benchmarks.md into one JSON.

    python benchmarks/fusion_suite.py --output benchmarks/results/fusion/h200.json

First the kernels are compared with float64 (fusion_conformance.py); the run ends with 1 if one is
off, after measuring what it can. Then, for 1.5B, 6.7B and 13B in bfloat16 at 1,024 tokens: forward
passes at batch 1 and 8, training steps at batch 1 and 4, tokens one by one, passes and training
steps under budgets, what auto chose, and the same under torch.compile. They come in the order of
`PLAN`, the file is written after each row, none is begun once --limit seconds are over, and what
was left out for that is named in it. Variants of one table are timed in turns, but for budgets, and
every table has the baseline twice, first and last: their difference is noise. pages/fusion.py puts
the tables of several runs together.

`--parts auto`, which the others stand for otherwise, makes only the tables that auto is judged by.
`--parts budgets:13B training-budgets:6.7B:1` makes those of a model, of a batch, in that order.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

# Choices are measured in this run, not taken from an earlier one.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="penstock-fusion-")

import fusion_conformance
import torch
from fusion import budget, segments
from fusion.models import (
    DTYPE,
    EVERYTHING,
    MODELS,
    SEQ_LEN,
    SINGLE,
    Member,
    Row,
    Suite,
    config_of,
    forward_peak,
    forward_step,
    kept_a_layer,
    kernels_a_layer,
    peak_of,
    random_model,
    timed_in_turn,
    tokens_for,
    training_step,
    variant_of,
)
from kit.measure import output_parser, release
from torch import Tensor

from penstock.fusion import auto, parse, tuning
from penstock.fusion.captured import Captured
from penstock.models.gpt import GPT

# ---- Forward passes and training ---------------------------------------------------------------


def names_for(best: str) -> list[str]:
    """The baseline first and, for the noise, last."""
    names = ["baseline", *SINGLE, EVERYTHING]
    return [*names, *([] if best in names else [best]), "baseline"]


def prefill_member(plain: GPT, name: str, batch: int, **label: Any) -> Member:
    model, tokens = variant_of(plain, name), tokens_for(plain.config, batch)
    step = forward_step(model, tokens)

    def rest() -> Row:
        return {
            "weight_bytes": sum(p.nbytes for p in plain.parameters()),
            "peak_bytes": peak_of(step),
            "peak_last_bytes": peak_of(forward_step(model, tokens, last=True)),
            "kernels_a_layer": kernels_a_layer(model, batch, training=False),
        }

    return Member({"work": "prefill", **label, "batch": batch, "fusion": name}, step, rest)


def training_member(plain: GPT, name: str, batch: int, recompute: int, **label: Any) -> Member:
    model = variant_of(plain, name, recompute=recompute)
    step = training_step(model, tokens_for(plain.config, batch))

    def rest() -> Row:
        weights = sum(p.nbytes for p in plain.parameters())
        peak = peak_of(step)  # where activations meet gradients
        forward = forward_peak(model, tokens_for(plain.config, batch))
        found = {
            "weight_bytes": weights,
            "peak_bytes": peak,
            "activation_peak_bytes": forward - weights,
            "kept_a_layer": kept_a_layer(model, batch),
            "kernels_a_layer": kernels_a_layer(model, batch, training=True),
        }
        release()
        return found

    what = {"work": "training", **label, "batch": batch, "fusion": name}
    return Member({**what, "dropout": plain.config.dropout, "recompute": recompute}, step, rest)


def prefill(suite: Suite, model: str, batch: int) -> None:
    plain = random_model(config_of(model))
    names = names_for(tune(suite, model, plain, batch, training=False))
    members = [prefill_member(plain, name, batch, model=model) for name in names]
    members[-1].label["again"] = True
    suite.table(4, members)


def training(suite: Suite, model: str, batch: int, *, dropout: float = 0.1) -> None:
    plain = random_model(config_of(model, dropout=dropout)).train()
    rows = [(name, 1) for name in names_for(tune(suite, model, plain, batch, training=True))]
    rows[-1:-1] = [("ffn_layernorm", 0), ("ffn_layernorm", 2)]
    members = [training_member(plain, name, batch, level, model=model) for name, level in rows]
    members[-1].label["again"] = True
    suite.table(4, members)


def captured_step(step: Callable[[], Any], tokens: Tensor) -> Captured[Any]:
    """A step that knows its tokens, as one that is given them."""
    return Captured(lambda _: step(), tokens)


def captured(suite: Suite, model: str, batch: int, *, train: bool) -> None:
    """Every variant as a CUDA graph, which takes the host out, and the baseline without one."""
    plain = random_model(config_of(model, dropout=0.1 if train else 0.0)).train(train)
    with tuning.measuring():
        forward_step(variant_of(plain, EVERYTHING).eval(), tokens_for(plain.config, batch))()
    work = "training, captured" if train else "prefill, captured"
    label: Row = {"work": work, "model": model, "batch": batch}
    if train:
        label |= {"dropout": plain.config.dropout, "recompute": 1}
    members = []
    for name in ["baseline", *SINGLE, EVERYTHING, "baseline"]:
        variant, tokens = variant_of(plain, name), tokens_for(plain.config, batch)
        step = (training_step if train else forward_step)(variant, tokens)
        if not members:
            members.append(Member({**label, "fusion": name, "eager": True}, step, dict))
        replayed = partial(captured_step(step, tokens), tokens)
        members.append(Member({**label, "fusion": name}, replayed, dict))
    members[:2] = reversed(members[:2])  # what others are compared with is first
    members[-1].label["again"] = True
    suite.table(2, members)


def compiled(suite: Suite, model: str, batch: int, name: str, *, train: bool) -> None:
    """A variant under torch.compile, in turns with the baseline without it."""
    work = "training" if train else "prefill"

    def measure() -> Row:
        torch.compiler.reset()  # all variants share the limit on recompiling one function
        plain = random_model(config_of(model)).train(train)
        tokens = tokens_for(plain.config, batch)
        make = training_step if train else forward_step
        steps = [make(variant_of(plain, name, compiled=True), tokens), make(plain, tokens)]
        times = timed_in_turn(steps)
        return {
            **times[0],
            "eager_ms": times[1]["median_ms"],
            "weight_bytes": sum(p.nbytes for p in plain.parameters()),
            "peak_bytes": peak_of(steps[0]),
        }

    more = {"dropout": config_of(model).dropout, "recompute": 1} if train else {}
    suite.row(f"{work}, compiled", 20, measure, model=model, batch=batch, fusion=name, **more)
    torch.compiler.reset()


# ---- What auto chooses --------------------------------------------------------------------------

# Batch, and whether it is training.
SHAPES = {
    "1.5B": ((1, False), (8, False), (1, True), (4, True)),
    "6.7B": ((1, False), (8, False), (1, True)),
    "13B": ((1, False), (8, False)),
}


def tune(suite: Suite, model: str, plain: GPT, batch: int, *, training: bool) -> str:
    """What auto chooses for the shape; the ops inside are measured on the way."""
    config, begin = plain.config, time.monotonic()
    with torch.autograd.set_multithreading_enabled(False):  # as the steps of the tables
        outcome = auto.measure(auto.Step(config, DTYPE, "cuda:0", batch, SEQ_LEN, training))
    suite.document.setdefault("auto", []).append(
        {
            "model": model,
            "batch": batch,
            "training": training,
            "dropout": config.dropout,
            "fusion": outcome.name,
            "seconds": round(time.monotonic() - begin, 2),
            "heats": outcome.figures(),
        }
    )
    return outcome.name


def for_auto(suite: Suite, model: str) -> None:
    """The tables by which auto is judged and nothing else: no peaks, no sets that it leaves.

    The baseline, each single variant, what was chosen, the baseline again, on the same weights.
    """
    plain = random_model(config_of(model))
    for batch, train in SHAPES[model]:
        plain.train(train)
        work = f"{'training' if train else 'prefill'}, for auto"
        with suite.trying({"work": work, "model": model, "batch": batch}):
            best = tune(suite, model, plain, batch, training=train)
            make = partial(training_member, recompute=1) if train else prefill_member
            names = ["baseline", *SINGLE, *([best] if "," in best else []), "baseline"]
            members = [make(plain, name, batch, model=model) for name in names]
            members = [Member({**m.label, "work": work}, m.step, dict) for m in members]
            members[-1].label["again"] = True
            suite.table(3, members, row_ms=700.0)  # where peaks are measured it is more
            plain.zero_grad(set_to_none=True)


# ---- The order ---------------------------------------------------------------------------------


def checks(suite: Suite) -> None:
    suite.document["conformance"] = fusion_conformance.run()


# By worth: what is cut off by the clock is what is known best or matters least.
PLAN: list[tuple[str, Callable[[Suite], None]]] = [
    ("checks", checks),
    ("training", partial(training, model="1.5B", batch=4)),
    ("training", partial(training, model="6.7B", batch=1)),
    ("decode", budget.decode),
    ("budgets", partial(budget.budgets, model="1.5B")),
    ("budgets", partial(budget.budgets, model="6.7B")),
    *(
        ("training-budgets", partial(budget.training_budgets, model=model, batch=batch))
        for model in MODELS
        for batch in (1, 4)
    ),
    *(
        ("compiled", partial(compiled, model="1.5B", batch=batch, name=name, train=train))
        for name in ("baseline", EVERYTHING)
        for batch, train in ((4, True), (8, False))
    ),
    *(
        ("captured", partial(captured, model="1.5B", batch=batch, train=train))
        for batch, train in ((1, False), (1, True), (4, True))
    ),
    *(("prefill", partial(prefill, model="1.5B", batch=batch)) for batch in (1, 8)),
    ("training", partial(training, model="1.5B", batch=1)),
    ("training", partial(training, model="6.7B", batch=4)),
    ("segments", segments.segments),
    *(("training", partial(training, model="13B", batch=batch)) for batch in (1, 4)),
    ("training", partial(training, model="1.5B", batch=4, dropout=0.0)),
    *(
        ("compiled", partial(compiled, model=model, batch=batch, name="baseline", train=train))
        for model in MODELS
        for batch, train in ((1, True), (4, True), (1, False), (8, False))
        if (model, batch) not in (("1.5B", 4), ("1.5B", 8))
    ),
    *(
        ("prefill", partial(prefill, model=model, batch=batch))
        for model in ("6.7B", "13B")
        for batch in (1, 8)
    ),
    ("budgets", partial(budget.budgets, model="13B")),
    *(("auto", partial(for_auto, model=model)) for model in MODELS),
]
PARTS = tuple(dict.fromkeys(part for part, _ in PLAN))
# What auto chose is in the tables of the others.
DEFAULT = [part for part in PARTS if part != "auto"]


Step = tuple[str, Callable[[Suite], None]]


def chosen(words: list[str]) -> list[Step]:
    """The steps of some words, each part[:model[:batch]]: in the plan's order, or in theirs.

    Raises:
        ValueError: If a word means nothing.
    """
    found: list[Step] = []
    for word in words:
        part, model, batch = [*word.split(":"), "", ""][:3]
        matching = [step for step in PLAN if _is(step, part, model, batch)]
        if not matching or word.count(":") > 2:
            raise ValueError(f"no such part: {word}; {', '.join(PARTS)}, each with :model:batch")
        found += [step for step in matching if step not in found]
    return found if any(":" in word for word in words) else [s for s in PLAN if s in found]


def _is(step: Step, part: str, model: str, batch: str) -> bool:
    keywords = getattr(step[1], "keywords", {})
    return (
        step[0] == part
        and model in ("", keywords.get("model"))
        and batch in ("", str(keywords.get("batch")))
    )


def main() -> int:
    parser = output_parser(__doc__)
    parser.add_argument("--limit", type=float, default=480.0, help="seconds for all of it")
    parser.add_argument("--parts", nargs="+", default=DEFAULT, metavar="PART[:MODEL[:BATCH]]")
    args = parser.parse_args()
    try:
        plan = chosen(args.parts)
    except ValueError as error:
        parser.error(str(error))
    suite = Suite(args)
    logging.basicConfig(level=logging.WARNING)
    for part, step in plan:
        before = suite.left
        what = {"work": part, **getattr(step, "keywords", {})}
        if before < 5:
            suite.document["left_out"].append(what)
            continue
        with suite.trying(what):
            step(suite)
        release()
        seconds = suite.document["seconds"]
        seconds[part] = round(seconds.get(part, 0.0) + before - suite.left, 1)
        suite.write()
    suite.write()
    print(
        f"{len(suite.document['rows'])} rows, {len(suite.document['left_out'])} left out, "
        f"{len(suite.document['failed'])} failed, {suite.document['seconds']}"
    )
    conformance = suite.document.get("conformance", {"failures": []})
    return 1 if conformance["failures"] or suite.document["failed"] else 0


if __name__ == "__main__":
    parse("baseline")
    sys.exit(main())
