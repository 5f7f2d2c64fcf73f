# SPDX-License-Identifier: Apache-2.0
"""The run of one_budget.py: rows of resident and of attached steps, and what each is held against.

A row that fails has an "error", and the next one runs.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from kit.card import Card, PeakWatch, same_bits
from kit.measure import settle, spread
from kit.record import OutOfTime, Record, brief
from kit.resident import Resident, by_turns, measure
from models.held_out import outputs
from torch import nn

MOST_PASSES = 16  # of a resident step, that are told one by one
Place = tuple[str, str, str]  # part, name and how of a row
SPARE_S = 15.0  # no new work so long before the limit


class Suite(Record):
    """The rows so far, the card, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args.output, args.seconds - SPARE_S, card=not args.small)
        self.args = args
        self.card = Card(small=args.small)
        if not args.small:
            self.card.steps = args.steps

    def row(self, part: str, name: str, how: str, measure: Callable[[], dict[str, Any]]) -> bool:
        """Add one row, or what went wrong; True where it holds a measurement."""
        row: dict[str, Any] = {"part": part, "name": name, "how": how}
        began = time.monotonic()
        try:
            self.check_time()
            row.update(measure())
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:600]
            if not isinstance(error, OutOfTime):
                traceback.print_exc()
        row["seconds"] = round(time.monotonic() - began, 2)
        self.add(row)
        return "error" not in row

    def fail(self, part: str, name: str, how: str, error: Exception) -> None:
        """A row of what went wrong before there was one, which holds no tensor for ever."""

        def again() -> dict[str, Any]:
            raise error

        self.row(part, name, how, again)
        error.__traceback__ = None

    # ---- Resident, and attached ------------------------------------------------------------

    def resident(
        self, part: str, name: str, models: list[nn.Module], step: Callable[[], Any]
    ) -> Resident:
        """Two rows of the resident step, which say how much one differs from the other."""
        found = measure(self.card, models, step)
        common = {
            "weight_bytes": found.weights,
            "touched_bytes": found.touched,
            "others_bytes": found.others,
            "passes": [each._asdict() for each in found.passes[:MOST_PASSES]],
        }
        self.row(part, name, "resident", lambda: {**common, **spread(found.first)})
        again = {"exact": found.exact, **spread(found.again)}
        self.row(part, name, "resident, again (A/A)", lambda: again)
        return found

    def attached(
        self, resident: Resident, step: Callable[[], Any], held: Any, watch: PeakWatch, budget: int
    ) -> dict[str, Any]:
        """The figures of one attached step: two compared passes, the timed ones between.

        A resident step follows each, and is what they are held against.
        """
        card = self.card
        exact = [same_bits(outputs(step()), resident.references)]
        self.check_time()
        times, beside = by_turns(card, step, resident.step, steps=card.steps, warmups=card.warmups)
        exact.append(same_bits(outputs(step()), resident.references))
        figures = spread(beside)
        row = {"exact": all(exact), **spread(times)}
        row.update({f"resident_{key}": value for key, value in figures.items()})
        bound = resident.bound(figures["median_ms"], budget, held.link()[0])
        return {**row, **self.against(bound, row["median_ms"]), **memory(held, watch, budget)}

    def against(self, bound: dict[str, Any], median_ms: float) -> dict[str, Any]:
        """The ideal and how far it is; the emulated GPU has none."""
        if self.card.small:
            return {}
        return {**bound, "ratio_to_ideal": round(median_ms / bound["ideal_ms"], 4)}


def run_all(
    args: argparse.Namespace,
    jobs: Callable[[Suite], dict[Place, Callable[[], None]]],
    *,
    ours: Callable[[dict[str, Any]], bool] = lambda row: True,
) -> int:
    """Run a script's jobs one after the other and print all their rows once more.

    Args:
        args: Has `seconds`, after which it ends whatever runs, and `small`.
        jobs: Each by the place of the row that tells why it ended early.
        ours: Whether what a row tells may make the script fail.

    Returns:
        Its exit status: 1 where a row of ours has an error, other bits or too high a peak.
    """
    faulthandler.dump_traceback_later(args.seconds, exit=True)
    if not args.small:
        settle()
    suite = Suite(args)
    for place, job in jobs(suite).items():
        try:
            suite.check_time()
            job()
        except Exception as error:
            suite.fail(*place, error)
        suite.card.clear()
    print("", *map(brief, suite.rows), sep="\n")
    faulthandler.cancel_dump_traceback_later()
    wrong = ("exact", "within_budget")
    told = [row for row in suite.rows if ours(row)]
    failed = [r for r in told if "error" in r or any(r.get(key) is False for key in wrong)]
    print(json.dumps({"rows": len(suite.rows), "failed": len(failed)}))
    return 1 if failed else 0


def memory(held: Any, watch: PeakWatch, budget: int) -> dict[str, Any]:
    """Budget and peak of a row, and what the attachment says of itself."""
    watch.note(held)
    stats = asdict(held.stats())
    return {
        "budget_bytes": budget,
        "peak_bytes": watch.peak(),
        "kept_by_the_benchmark_bytes": watch.kept,
        "within_budget": watch.peak() <= budget,
        "explain": held.explain(),
        "stats": {key: value for key, value in stats.items() if isinstance(value, int | float)},
    }
