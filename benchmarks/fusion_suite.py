# SPDX-License-Identifier: Apache-2.0
"""The fused layers on one card: checks, then every table of docs/fusion.md, into one JSON.

    python benchmarks/fusion_suite.py --output benchmarks/results/fusion/h200.json

First the kernels are compared with float64 (fusion_conformance.py); the run ends with 1 if one is
off, after measuring what it can. Then, for 1.5B, 6.7B and 13B in bfloat16 at 1,024 tokens: forward
passes at batch 1 and 8, training steps at batch 1 and 4, tokens one by one, passes under budgets,
what auto chose, and the same under torch.compile. Rows come in the order of their worth and the
file is written after each: none is begun once --limit seconds are over, and what was left out for
that is named in it. Every table has the baseline twice, first and last: their difference is noise.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Choices are measured in this run, not taken from an earlier one.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="penstock-fusion-")

import fusion_budget
import fusion_conformance
import fusion_segments
import torch
from fusion_models import (
    DTYPE,
    EVERYTHING,
    MODELS,
    SEQ_LEN,
    SINGLE,
    Clock,
    config_of,
    forward_peak,
    forward_step,
    kept_a_layer,
    kernels_a_layer,
    peak_of,
    random_model,
    timed,
    tokens_for,
    training_step,
    variant_of,
)
from measure import provenance, write_result

from penstock.fusion import auto, parse, tuning
from penstock.models.gpt import GPT

Row = dict[str, Any]
PARTS = ("checks", "prefill", "training", "decode", "segments", "budgets", "compiled")


class Suite:
    """The run: its rows, its file, its clock."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.clock = Clock(args.limit)
        self.document: dict[str, Any] = {
            "title": "Fused layers",
            "command": " ".join(["python", *sys.argv]),
            "where": provenance(),
            "dtype": str(DTYPE),
            "seq_len": SEQ_LEN,
            "rows": [],
            "left_out": [],
            "failed": [],
            "seconds": {},
        }

    def write(self) -> None:
        self.document["choices"] = {
            key: name for found in tuning._known.values() for key, name in sorted(found.items())
        }
        self.document["total_seconds"] = round(self.args.limit - self.clock.left, 1)
        write_result(self.args.output, self.document)

    def row(self, work: str, seconds: float, measure: Callable[[], Row], **what: Any) -> Row | None:
        """One row, unless it would not end in time; what fails is recorded, and others go on."""
        label = {"work": work, **what}
        if self.clock.left < seconds:
            self.document["left_out"].append(label)
            return None
        try:
            found = {**label, **measure()}
        except Exception as error:
            traceback.print_exc()
            self.document["failed"].append({**label, "error": f"{type(error).__name__}: {error}"})
            release()
            return None
        self.document["rows"].append(found)
        print(brief(found), f"[{self.clock.left:.0f} s left]", flush=True)
        self.write()
        return found


def brief(row: Row) -> str:
    words = [str(row[key]) for key in ("work", "model", "batch", "fusion") if key in row]
    numbers = {
        key: row[key]
        for key in ("median_ms", "kernels_a_layer", "kept_a_layer", "peak_bytes", "bytes_in")
        if key in row
    }
    return " ".join(words) + f" {numbers}"


def release() -> None:
    gc.collect()
    torch.cuda.empty_cache()


# ---- Forward passes and training ---------------------------------------------------------------


def names_for(extra: list[str]) -> list[str]:
    """The baseline first and, for the noise, last."""
    return ["baseline", *SINGLE, EVERYTHING, *extra, "baseline"]


def prefill_row(plain: GPT, name: str, batch: int, compiled: bool) -> Row:
    if compiled:
        torch.compiler.reset()  # all variants share the limit on recompiling one function
    model = variant_of(plain, name, compiled=compiled)
    tokens = tokens_for(plain.config, batch)
    step = forward_step(model, tokens)
    weights = sum(p.nbytes for p in plain.parameters())
    found = timed(step)
    last = forward_step(model, tokens, last=True)
    return {
        **found,
        "weight_bytes": weights,
        "peak_bytes": peak_of(step),
        "peak_last_bytes": peak_of(last),
        "kernels_a_layer": kernels_a_layer(model, batch, training=False),
    }


def training_row(plain: GPT, name: str, batch: int, compiled: bool, recompute: int) -> Row:
    if compiled:
        torch.compiler.reset()
    model = variant_of(plain, name, compiled=compiled, recompute=recompute)
    step = training_step(model, tokens_for(plain.config, batch))
    found = timed(step, most=20)
    weights = sum(p.nbytes for p in plain.parameters())
    peak = peak_of(step)  # where activations meet gradients
    forward = forward_peak(model, tokens_for(plain.config, batch))
    row = {
        **found,
        "weight_bytes": weights,
        "peak_bytes": peak,
        "activation_peak_bytes": forward - weights,
        "kept_a_layer": kept_a_layer(model, batch),
        "kernels_a_layer": None,
    }
    plain.zero_grad(set_to_none=True)
    row["kernels_a_layer"] = kernels_a_layer(model, batch, training=True)
    return row


def tune(suite: Suite, model: str, plain: GPT, batch: int, *, training: bool) -> str:
    """What auto chooses for the shape; the ops inside are measured on the way."""
    config = plain.config
    fusion = auto.choose(
        config, dtype=DTYPE, device="cuda:0", batch=batch, seq_len=SEQ_LEN, training=training
    )
    suite.document.setdefault("auto", []).append(
        {
            "model": model,
            "batch": batch,
            "training": training,
            "dropout": config.dropout,
            "fusion": fusion.name,
        }
    )
    return fusion.name


def prefill(suite: Suite, model: str, *, compiled: bool, names: list[str] | None = None) -> None:
    plain = random_model(config_of(model))
    work = "prefill, compiled" if compiled else "prefill"
    for batch in (1, 8):
        chosen = names or names_for([])
        if not compiled:
            best = tune(suite, model, plain, batch, training=False)
            chosen = names_for([best] if best not in chosen else [])
        for number, name in enumerate(chosen):
            again = not compiled and number == len(chosen) - 1
            suite.row(
                work,
                15 if compiled else 5,
                lambda name=name, batch=batch: prefill_row(plain, name, batch, compiled),
                model=model,
                batch=batch,
                fusion=name,
                again=again,
            )
        release()
    torch.compiler.reset()


def training(
    suite: Suite,
    model: str,
    *,
    compiled: bool = False,
    names: list[str] | None = None,
    dropout: float = 0.1,
    batches: tuple[int, ...] = (1, 4),
) -> None:
    plain = random_model(config_of(model, dropout=dropout)).train()
    work = "training, compiled" if compiled else "training"
    for batch in batches:
        chosen = names or names_for([])
        if not compiled and names is None:
            best = tune(suite, model, plain, batch, training=True)
            chosen = names_for([best] if best not in chosen else [])
        rows = [(name, 1) for name in chosen]
        if not compiled and names is None:
            rows[-1:-1] = [("ffn_layernorm", 0), ("ffn_layernorm", 2)]
        for number, (name, recompute) in enumerate(rows):
            again = not compiled and number == len(rows) - 1
            suite.row(
                work,
                25 if compiled else 10,
                lambda name=name, batch=batch, recompute=recompute: training_row(
                    plain, name, batch, compiled, recompute
                ),
                model=model,
                batch=batch,
                fusion=name,
                dropout=dropout,
                recompute=recompute,
                again=again,
            )
            release()
    torch.compiler.reset()


# ---- The order ---------------------------------------------------------------------------------


def parts(suite: Suite) -> dict[str, list[Callable[[], None]]]:
    """What each part does, by its name."""

    def checks() -> None:
        suite.document["conformance"] = fusion_conformance.run()

    pairs = ["baseline", EVERYTHING]
    return {
        "checks": [checks],
        "prefill": [lambda m=m: prefill(suite, m, compiled=False) for m in MODELS],
        "training": [
            *(lambda m=m: training(suite, m) for m in MODELS),
            lambda: training(suite, "1.5B", dropout=0.0, batches=(4,)),
        ],
        "decode": [lambda: fusion_budget.decode(suite)],
        "segments": [lambda: fusion_segments.segments(suite)],
        "budgets": [lambda m=m: fusion_budget.budgets(suite, m) for m in MODELS],
        "compiled": [
            lambda: prefill(suite, "1.5B", compiled=True, names=["baseline", *SINGLE, EVERYTHING]),
            lambda: training(suite, "1.5B", compiled=True, names=["baseline", *SINGLE, EVERYTHING]),
            *(lambda m=m: prefill(suite, m, compiled=True, names=pairs) for m in ("6.7B", "13B")),
            *(lambda m=m: training(suite, m, compiled=True, names=pairs) for m in ("6.7B", "13B")),
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=480.0, help="seconds for all of it")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    suite = Suite(parser.parse_args())
    logging.basicConfig(level=logging.WARNING)
    for part, steps in parts(suite).items():
        if part not in suite.args.parts:
            continue
        before = suite.clock.left
        for step in steps:
            if suite.clock.left < 5:
                suite.document["left_out"].append({"work": part, "step": steps.index(step)})
                continue
            try:
                step()
            except Exception as error:
                traceback.print_exc()
                suite.document["failed"].append({"work": part, "error": f"{error}"[:500]})
            release()
            suite.write()
        suite.document["seconds"][part] = round(before - suite.clock.left, 1)
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
