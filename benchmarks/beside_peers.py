# SPDX-License-Identifier: Apache-2.0
"""Models plain, under Penstock, and under its peers, within the same budget, in one process.

    python benchmarks/beside_peers.py --only llama whisper t5 flux-pipeline --budgets 8GiB 12GiB \
        --seconds 560 --output benchmarks/results/peers/h100.json
    python benchmarks/beside_peers.py --model my_model.py --budgets 8GiB

A file given by --model defines build() -> model, on the CPU or on "meta" (then its weights are
noise), and step(model, device) -> result, which is to give the same each time. Without --budgets
the budget is half of what a model needs, or another share of it.

Each model is run with everything on the card first, then attached, each of its steps before a
resident one. Then the resident weights go to the host, and each peer (models/peers.py) runs that
model. Peers are kept within the budget by PyTorch's allocator; what they take is the driver's own
figure. DeepSpeed keeps the host's memory and changes parameters for good: with it, a command a
model. `exact` says whether bits are those of the resident run. One_budget.py explains the ideal.

`--small` runs everything but the peers, in little, on the emulated GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attach.models import SHARES, attached_rows, budget_of, residents_of, share_of
from attach.suite import Place, Suite, run_all
from kit.card import PeakWatch, same_bits
from kit.measure import output_parser, spread
from kit.resident import Resident
from models import peers
from models.cases import Case, Steps, from_file, held_out, modules_of
from models.held_out import outputs
from models.pipelines import flux_pipeline
from models.shapes import SHAPES

PIPELINES = {"flux-pipeline": flux_pipeline}
LONG_MS = 20e3  # one sample that takes so long is enough


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = output_parser(__doc__, required=False)
    parser.add_argument("--only", nargs="+", choices=[*SHAPES, *PIPELINES], default=[])
    parser.add_argument("--model", type=Path, help="a file with build() and step()")
    parser.add_argument("--budgets", nargs="+", default=[], help="such as 8GiB")
    parser.add_argument("--share", type=int, choices=SHARES, default=2, help="without: a half, ...")
    parser.add_argument("--seconds", type=float, default=560, help="the whole ends by then")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=peers.PEERS,
        default=peers.installed(),
        help="all that are installed, DeepSpeed only when it is named",
    )
    parser.add_argument("--steps", type=int, default=4, help="of a picture's diffusion")
    parser.add_argument("--tokens", type=int, default=32, help="that a model of text makes")
    parser.add_argument("--images", type=int, default=1024, help="pixels a side")
    parser.add_argument("--samples", type=int, default=10, help="of a step")
    parser.add_argument("--peer-samples", type=int, default=3, help="at most")
    parser.add_argument("--small", action="store_true", help="in little, on the emulated GPU")
    args = parser.parse_args(argv)
    if not args.only and args.model is None:
        args.only = ["llama", "whisper", "t5", "flux-pipeline"]
    return args


def cases(suite: Suite) -> dict[str, Callable[[], Case]]:
    """What was asked for; made one after the other."""
    args, card = suite.args, suite.card
    made: dict[str, Callable[[], Case]] = {}
    for name in args.only:
        if name in PIPELINES:
            made[name] = partial(PIPELINES[name], card, steps=args.steps, size=args.images)
        else:
            made[name] = partial(held_out, name, card, args.tokens)
    if args.model is not None:
        made[args.model.stem] = partial(from_file, args.model, card)
    return made


def run(suite: Suite, make: Callable[[], Case]) -> None:
    """All rows of a model."""
    case = make()
    suite.check_time()
    model = case.resident()
    residents = residents_of(suite, "peers", case, model)
    largest = max(residents.values(), key=lambda each: each.needed)
    asked = suite.args.budgets
    budgets = [budget_of(suite, text, largest.weights) for text in asked] or [
        share_of(suite, largest.needed)
    ]
    links = {
        budget: attached_rows(suite, "peers", "penstock", case, residents, budget)
        for budget in budgets
    }
    for module in modules_of(model):
        module.to("cpu")
    suite.card.clear()
    if suite.card.small:
        return
    for name, peer in peers.fitting(suite.args.peers, model).items():
        for budget in budgets:
            beside = Beside(suite, name, model, residents, budget, links[budget])
            beside.add_rows(peer, case.steps(model))


@dataclass
class Beside:
    """A model by the means of a peer, within a budget.

    Attributes:
        suite: The run.
        name: The peer's.
        model: On the host.
        residents: What its steps are held against, by their names.
        budget: Bytes of the device.
        link: Its GB/s, or None where they are not known.
    """

    suite: Suite
    name: str
    model: Any
    residents: dict[str, Resident]
    budget: int
    link: float | None

    def add_rows(self, peer: peers.Peer, steps: Steps) -> None:
        """A row a step, with room for the weights beside any of them.

        What runs out of memory so is tried again with less of it for weights, by a peer to whom
        that can be told.
        """
        rows = self.suite.rows
        most = max(0, self.budget - max(self.residents[what].others for what in steps))
        for share in peers.SHARES_OF_ROOM if self.name in peers.TOLD_THE_ROOM else (1.0,):
            before = len(rows)
            self.enter(partial(peer, room=int(share * most)), steps)
            failed = [r["name"] for r in rows[before:] if "OutOfMemoryError" in r.get("error", "")]
            steps = {what: step for what, step in steps.items() if what in failed}
            if not steps:
                return

    def enter(self, peer: Callable[..., None], steps: Steps) -> None:
        """The rows of a peer that is entered once; of steps that did not run, why."""
        card, left = self.suite.card, dict(steps)
        card.clear()
        with PeakWatch(card) as watch:
            try:
                with peers.offloaded(peer, self.model, card, self.budget + watch.kept):
                    for what, step in steps.items():
                        del left[what]
                        card.clear()
                        watch.forget()
                        row = partial(self.measure, step, self.residents[what], watch)
                        self.suite.row("peers", what, self.name, row)
            except Exception as error:
                for what in left or ["afterwards"]:
                    self.suite.fail("peers", what, self.name, error)

    def measure(
        self, step: Callable[[], Any], resident: Resident, watch: PeakWatch
    ) -> dict[str, Any]:
        """The figures of a step; of one that fails as far as it came, and why."""
        suite, budget = self.suite, self.budget
        row: dict[str, Any] = {"budget_bytes": budget, "resident_median_ms": resident.step_ms}
        try:
            row.update(compared(step, resident.references))
            samples: list[float] = []
            while len(samples) < suite.args.peer_samples:
                samples += suite.card.time(step, steps=1, warmups=0)
                if samples[-1] > LONG_MS or suite.left < samples[-1] / 1e3:
                    break
            again = compared(step, resident.references) if samples[-1] < LONG_MS else row
            row["exact"] = row["exact"] and again["exact"]
            row.update(spread(samples))
            if self.link is not None:
                bound = resident.bound(resident.step_ms, budget, self.link)
                row.update(bound, **suite.against(bound, row["median_ms"]))
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:600]
        row.update(
            peak_bytes=watch.peak(),
            kept_by_the_benchmark_bytes=watch.kept,
            within_budget=watch.peak() <= budget,
        )
        return row


def compared(step: Callable[[], Any], references: list[torch.Tensor]) -> dict[str, Any]:
    """Whether a step's bits are those of the resident run, or else how far they are from them."""
    results = outputs(step())
    if same_bits(results, references):
        return {"exact": True}
    pairs = list(zip(results, references, strict=False))
    if len(results) != len(references) or any(one.shape != other.shape for one, other in pairs):
        return {"exact": False, "note": "other shapes"}
    far = [(one.cpu().double() - other.double()).abs().max().item() for one, other in pairs]
    return {"exact": False, "difference": max(far)}


@torch.no_grad()
def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)

    def jobs(suite: Suite) -> dict[Place, Callable[[], None]]:
        suite.card.warmups = min(suite.card.warmups, args.samples)
        suite.card.steps = args.samples
        return {
            ("peers", name, "resident"): partial(run, suite, make)
            for name, make in cases(suite).items()
        }

    return run_all(args, jobs, ours=lambda row: row["how"] not in peers.PEERS)


if __name__ == "__main__":
    sys.exit(main())
