# SPDX-License-Identifier: Apache-2.0
"""One budget for weights, activations and caches: what holds, and how far from the ideal it is.

    python benchmarks/one_budget.py --parts llama generate moe shapes fits two random oom cycles \
        --seconds 580 --output benchmarks/results/one_budget/h200.json

Each part runs models that nobody here wrote, resident and attached within budgets that do not hold
them, by turns. The ideal of a row is max(T, X / B): T the resident step and B the page-locked copy
speed, both measured in this process; X = max(0, M - S), with M the bytes of weights that a pass
touches (embedding tables by rows) and S the budget less the resident run's own peak of everything
else. Memory is the driver's own figure by NVML, every 5 ms. A row that fails has an "error", and
the next one runs. `--small` runs everything in little on the emulated GPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from budget_card import Card, PeakWatch, ideal, same_bits, spread
from held_out_models import outputs
from measure import command_line, provenance, write_result
from resident import Resident, by_turns, measure, settle
from torch import nn

from penstock.units import GIB

SPARE_S = 15.0  # no new work so long before the limit


class OutOfTime(Exception):
    """The time that the command line gave is over."""


class Suite:
    """The rows so far, the card, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.card = Card(small=args.small)
        if not args.small:
            self.card.steps = args.steps
        self.rows: list[dict[str, Any]] = []
        self._end = time.monotonic() + args.seconds - SPARE_S
        where = {} if args.small else provenance()
        self._document = {"command": command_line(), "where": where}

    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def check_time(self) -> None:
        if self.left() < 0:
            raise OutOfTime(f"the {self.args.seconds:.0f} s of --seconds are over")

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
        self.rows.append(row)
        print(line(row), flush=True)
        if self.args.output is not None:
            write_result(self.args.output, {**self._document, "rows": self.rows})
        return "error" not in row

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
        room = budget - resident.others
        bound = ideal(figures["median_ms"], resident.touched, room, held.link()[0])
        return {**row, **self.against(bound, row["median_ms"]), **memory(held, watch, budget)}

    def against(self, bound: dict[str, Any], median_ms: float) -> dict[str, Any]:
        """The ideal and how far it is; the emulated GPU has none."""
        if self.card.small:
            return {}
        return {**bound, "ratio_to_ideal": round(median_ms / bound["ideal_ms"], 4)}


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


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    text = f"{row['part']:<9}{row['name']:<29}{row['how']:<38}"
    if "error" in row:
        return f"{text}ERROR {row['error']}"
    text += f"{row['budget_bytes'] / GIB:>7.2f} GiB" if "budget_bytes" in row else " " * 11
    text += f"{row['median_ms']:>10.1f} ms" if "median_ms" in row else " " * 13
    text += f"{row['p99_ms']:>10.1f}" if "p99_ms" in row else " " * 10
    text += f"{row['ideal_ms']:>10.1f}" if "ideal_ms" in row else " " * 10
    text += f"{row['resident_median_ms']:>10.1f}" if "resident_median_ms" in row else " " * 10
    text += f"{row['ratio_to_ideal']:>8.3f} x" if "ratio_to_ideal" in row else " " * 10
    text += f"{row['peak_bytes'] / GIB:>8.2f} GiB" if "peak_bytes" in row else " " * 12
    for key in ("exact", "within_budget", "note"):
        text += f"  {key} {row[key]}" if key in row else ""
    return text


def arguments(parts: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--seconds", type=float, default=580, help="the whole ends by then")
    parser.add_argument("--new-tokens", type=int, default=2000, help="of the part generate")
    parser.add_argument("--caches", nargs="+", default=["dynamic", "static"])
    parser.add_argument("--only", nargs="+", default=[], help="models of the parts shapes and moe")
    parser.add_argument("--passes", type=int, default=500, help="of the part random")
    parser.add_argument("--steps", type=int, default=12, help="that are timed in a row")
    parser.add_argument("--cycles", type=int, default=1000, help="of the part cycles")
    parser.add_argument("--small", action="store_true", help="in little, on the emulated GPU")
    parser.add_argument("--output", type=Path, default=None)
    return parser.parse_args()


@torch.no_grad()
def main() -> int:
    from one_budget_models import fits, generate, llama, moe, shapes
    from one_budget_stress import cycles, oom, random, two

    parts = {
        part.__name__: part
        for part in (llama, generate, moe, shapes, fits, two, random, oom, cycles)
    }
    args = arguments(list(parts))
    faulthandler.dump_traceback_later(args.seconds, exit=True)
    if not args.small:
        settle()
    suite = Suite(args)
    for name in args.parts:
        try:
            suite.check_time()
            parts[name](suite)
        except Exception as error:
            failed = error  # what a part does before its first row

            def again(failed: Exception = failed) -> dict[str, Any]:
                raise failed

            suite.row(name, "", "", again)
            failed.__traceback__ = None
        suite.card.clear()
    print(f"\n{'part':<9}{'model':<29}{'how':<38}{'budget':>11}{'median':>13}{'p99':>10}", end="")
    print(f"{'ideal':>10}{'resident':>10}{'ratio':>10}{'peak':>12}")
    print("\n".join(map(line, suite.rows)))
    faulthandler.cancel_dump_traceback_later()
    wrong = ("exact", "within_budget")
    failed = [r for r in suite.rows if "error" in r or any(r.get(key) is False for key in wrong)]
    print(json.dumps({"rows": len(suite.rows), "failed": len(failed)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.modules.setdefault("one_budget", sys.modules["__main__"])  # parts import it by name
    sys.exit(main())
